"""Text of a model as HTML can hold it."""

CONTROL = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "␡"}


def visible(text: str) -> str:
    """Control characters as the pictures Unicode has for them: a page may not hold them, and one should see them."""
    return text.translate(CONTROL)
