"""Texts that are compared: the same letters, however they are written in Unicode."""

import unicodedata


def compose(text: str) -> str:
    """Letters with their marks as one character where Unicode has one (NFC).

    Tokenizers such as Qwen's compose what they read, so that a model which copies a
    text exactly may write other characters than it was shown.
    """
    return unicodedata.normalize("NFC", text)
