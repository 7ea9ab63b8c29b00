"""The training of a GPT."""
