"""The drop-in: ``install()`` makes programs written for ``torch.compile`` run on bothways, unchanged.

``table`` says what is replaced, ``names`` how words are translated, ``facades`` what runs instead, and
``installer`` and ``changes`` put it in place and take it out again. Only this package speaks of the compiler
it stands in for.
"""

from bothways.api.dropin.installer import install, uninstall

__all__ = ["install", "uninstall"]
