"""Command lines that say in a few lines what is wrong, instead of listing all their options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any
from typing import NoReturn

from trt_perception.plain_text import nearest
from trt_perception.plain_text import plain

__all__ = ['OptionParser']


class OptionParser(argparse.ArgumentParser):
    """A parser whose help ends with examples, and whose refusals name the option that was meant.

    Args:
        program: its name.
        description: the first line of the help.
        examples: the last ones, printed as they are written.
        usage: how it is called, where that is more than its options.
    """

    def __init__(
        self, program: str, description: str | None, examples: str, usage: str | None = None
    ) -> None:
        super().__init__(
            prog=program,
            usage=usage,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and remember what was given."""
        self._given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, what was meant and what is needed; end with exit code 2."""
        needed = self._get_formatter()
        needed.add_usage(self.usage, [action for action in self._actions if action.required], [])
        usage = ' '.join(needed.format_help().split()) + ' [OPTION ...]' * (not self.usage)
        said = [f'{self.prog}: error: {message}', *self._meant(), f'{usage}; --help says more']
        self.exit(2, plain('\n'.join(said)) + '\n')

    def _meant(self) -> list[str]:
        """Return a sentence for each word that is nearly an option."""
        options = [name for action in self._actions for name in action.option_strings]
        words = [word.partition('=')[0] for word in self._given if word.startswith('--')]
        return [
            f'{word} is no option; did you mean {close}?'
            for word in words
            if not any(option.startswith(word) for option in options)
            for close in nearest(word, options)
        ]
