"""The theme of `headrace observe`."""

from __future__ import annotations

from textual.theme import Theme

THEME = Theme(
    name="headrace",
    primary="#3fa796",
    secondary="#5b8fb9",
    accent="#e5b567",
    warning="#e5b567",
    error="#f2777a",
    success="#5fd7af",
    foreground="#d5dbe1",
    background="#0f1418",
    surface="#0f1418",
    panel="#1b242b",
    variables={
        "block-cursor-background": "#24433f",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#161d22",
        "footer-key-foreground": "#3fa796",
        "footer-background": "#161d22",
        "border": "#3fa796",
        "border-blurred": "#33404a",
    },
)
