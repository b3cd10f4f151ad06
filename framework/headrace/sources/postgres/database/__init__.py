"""The captured server's tables, publications and slots, the checks before a capture, and the
statements that correct what is wrong.
"""
