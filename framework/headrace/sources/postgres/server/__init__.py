"""On the captured server: its tables, publications and slots; what is looked at before it is captured, and the statements that mend it."""
