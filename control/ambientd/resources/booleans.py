"""The texts that Go programs take for true and false, in flags, variables, labels, annotations and the metadata of
clients alike. Must not decide what any other text means."""

from __future__ import annotations

from typing import Final

TRUE_TEXTS: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
FALSE_TEXTS: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})
