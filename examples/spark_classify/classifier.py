"""A small text classifier: words hashed into features, and a linear model in NumPy.

    python classifier.py labelled.jsonl model.npz       # trains it, from lines such as {"label": "bug", "text": "…"}

Executors import this module, so each of their Python processes loads a model once. A function of the main program would be sent with
each task, together with an empty cache. To use a model of another package, change `Model` and `load`.
"""

import json
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

FEATURES = 4096
CHUNK = 1_000  # texts that have features at the same time: 16 MB

Floats = npt.NDArray[np.float32]


class Model:
    """A trained model.

    Attributes:
        labels: the labels that it knows.
        weights: a row for each feature, and a column for each label.
    """

    def __init__(self, labels: Sequence[str], weights: Floats) -> None:
        self.labels, self.weights = labels, weights

    def classify(self, texts: Sequence[str]) -> Iterator[tuple[str, float]]:
        """Yield the most probable label of each text, and its probability."""
        for start in range(0, len(texts), CHUNK):
            found = probabilities(features(texts[start : start + CHUNK]) @ self.weights)
            for best, row in zip(found.argmax(axis=1), found, strict=True):
                yield self.labels[best], float(row[best])


@cache
def load(path: str) -> Model:
    """Return the model of a file, which is read once in each process."""
    with np.load(path) as stored:
        return Model(stored["labels"].tolist(), stored["weights"])


def train(texts: Sequence[str], labels: Sequence[str], path: str) -> None:
    """Train a model, by logistic regression, and write it to a file."""
    names, wanted = np.unique(labels, return_inverse=True)
    known, answers = features(texts), np.eye(len(names), dtype=np.float32)[wanted]
    weights = np.zeros((FEATURES, len(names)), np.float32)
    for _ in range(200):
        weights += known.T @ (answers - probabilities(known @ weights)) / len(texts)
    np.savez(path, labels=names, weights=weights)


def features(texts: Sequence[str]) -> Floats:
    """Return the number of each text's words in each feature."""
    counts = np.zeros((len(texts), FEATURES), np.float32)
    for row, text in enumerate(texts):
        for word in re.findall(r"\w+", text.lower()):
            counts[row, zlib.crc32(word.encode()) % FEATURES] += 1
    return counts


def probabilities(scores: Floats) -> Floats:
    """Return the probability of each label (softmax)."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


if __name__ == "__main__":
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    train([row["text"] for row in rows], [row["label"] for row in rows], sys.argv[2])
