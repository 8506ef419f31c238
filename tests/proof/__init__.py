"""The proof that no fact of the history is wrong: README.md of this folder explains it."""
