"""A parser of options that suggests which option to use instead of an unknown one."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import shlex
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ppcls.cli.arguments.hints import Hint, find_hint, find_value_hint
from ppcls.cli.arguments.options import Option, add_options, describe, read_options
from ppcls.commands import set_keys

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# The messages of argparse about a missing model, of commands with one or two ways to name it.
_REQUIRED_MODEL = re.compile(r"one of the arguments -c/--config (--from/)?--model is required")
_TYPING_ERROR = 0.8  # smallest similarity of a name with a typing error to the right name, from 0 to 1
_MAX_LISTED = 12  # options that an error message lists
_REQUIRED = ("one of the arguments ", "the following arguments are required: ")
_OF_OPTION = re.compile(r"argument (?P<names>-[^:]*): (?P<problem>.*)", re.DOTALL)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command.

    Args:
        command: Name of the command, such as ``train``.
        options: Class that declares the options.
        prog: Name of the program in messages; by default that of the process.
        elsewhere: For each option that only another command has, the name of this command.
    """

    def __init__(
        self,
        command: str,
        options: type[Any],
        prog: str | None = None,
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        epilog = [getattr(options, "epilog", ""), "\n  ".join(("examples:", *options.examples))]
        super().__init__(
            prog=prog,
            description=wrap(describe(options)),
            epilog="\n\n".join(filter(None, epilog)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # An abbreviation that exists today, such as --val, could mean something else in the next version.
            allow_abbrev=False,
        )
        declared = read_options(options)
        add_options(self, declared)
        self._command = command
        self._elsewhere = elsewhere or {}
        self._options = {name: option for option in declared for name in option.names if name[0] == "-"}
        self._positional = [option.field for option in declared if option.argument.positional]
        self._words: Sequence[str] = ()
        self._settings: Sequence[str] = ()  # arguments such as ``epochs=3``

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Returns the parsed and the unknown arguments.

        The home folder in ``--option=~/…`` is expanded. If any argument is unknown, a positional argument
        such as ``model=PATH`` is also returned as unknown.
        """
        from ppcls.files import expand_home

        words = [
            re.sub(r"^(--[\w-]+=)(~/.*)", lambda found: found[1] + expand_home(found[2]), word)
            for word in (sys.argv[1:] if args is None else args)
        ]
        self._words = words
        self._settings = [text for text in words if re.match(r"[\w-]+=", text)]
        parsed, unknown = super().parse_known_args(words, namespace)
        values = [getattr(parsed, name, None) for name in self._positional]
        first = [text for text in values if text in self._settings] if unknown else []
        return parsed, _in_order([*first, *unknown], words)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Writes the help at once. Unlike argparse's method, it does not ignore errors of standard output."""
        output = file or sys.stdout
        output.write(self.format_help())
        sys.stdout.flush()

    def error(self, message: str) -> NoReturn:
        """Prints the message with suggestions, and exits with code 2."""
        title, _, unknown = message.partition("unrecognized arguments: ")
        if _REQUIRED_MODEL.fullmatch(message):
            message = "expected --model PATH, such as --model runs/pets, or -c CONFIG"
            hint = self._suggest_required(model=True)
        elif message.startswith(_REQUIRED):
            hint = self._suggest_required(model=message.endswith("required: --model"))
        elif unknown and not title:
            hint = self.suggest_options(unknown.split())
        elif about := _OF_OPTION.fullmatch(message):
            message, hint = self._explain_value(about["names"], about["problem"])
        else:
            hint = ""
        self.exit(2, f"{self.prog}: error: {message}{hint}\n`{self.prog} --help` lists all options\n")

    def _suggest_required(self, *, model: bool) -> str:
        """Returns suggestions if a required option is missing, which argparse reports before unknown ones.

        Args:
            model: Whether the missing option is ``--model``.
        """
        unknown = [word for word in self._words if re.match(r"--?[a-zA-Z]", word) and self._is_unknown(word)]
        first = self._words[0] if self._words else ""
        if model and self._is_model(first):
            unknown.append(f"model={first}")
        hint = self.suggest_options([*unknown, *self._settings])
        return "" if hint.startswith("; known: ") else hint

    def _is_unknown(self, word: str) -> bool:
        return word.partition("=")[0] not in (*self._options, "-h", "--help")

    def _is_model(self, word: str) -> bool:
        """Returns whether a word without an option is a model, not an image to predict."""
        if not word or word.startswith("-") or "=" in word:
            return False
        path = Path(word)
        files = ("config.yaml", "inference.yml", "best_model", "model.safetensors")
        return not self._positional or path.suffix == ".onnx" or any((path / name).exists() for name in files)

    def _explain_value(self, names: str, problem: str) -> tuple[str, str]:
        """Returns the message and the hint for an option whose value is missing or not accepted."""
        option = self._options.get(names.split("/")[-1])
        if option is None:
            return f"argument {names}: {problem}", ""
        if problem.startswith("expected ") and problem.endswith("one argument"):
            value = option.argument.settings.get("metavar") or option.keywords().get("metavar")
            shown = value or ("|".join(map(str, option.choices)) or "VALUE")
            hint = find_hint(self._command, f"{option.name.lstrip('-')}=")
            example = f"; {hint.in_command()}" if hint is not None else ""
            return f"argument {names}: expected a value: {option.name} {shown}", example
        value = self._typed_value(option)
        hint = None if value is None else self._suggest_value(option, value)
        text = "" if hint is None else hint.in_command()
        if option.choices and all(str(choice) in text for choice in option.choices):
            text = ""  # argparse lists the choices, too
        return f"argument {names}: {problem}", f"; {text}" if text else ""

    def _typed_value(self, option: Option) -> str | None:
        """Returns the first value of an option on the command line that the option rejects."""
        for position, word in enumerate(self._words):
            name, equals, value = word.partition("=")
            if name in option.names:
                following = list(self._words[position + 1 : position + 2])
                for text in [value] if equals else following:
                    if option.reject(text):
                        return text
        return None

    def _suggest_value(self, option: Option, value: str) -> Hint | None:
        """Returns what to write instead of a value that an option rejects; None for an unknown value."""
        name = option.name.lstrip("-")
        if value.lower() in ("true", "yes", "on") and "without_value" in option.argument.settings:
            return Hint((option.name,))
        hint = find_value_hint(self._command, name, value)
        if hint is None and value.lower() in ("false", "no", "off", "none"):
            return Hint(text=f"leave out {option.name}")
        return hint

    def suggest_options(self, unknown: Sequence[str]) -> str:
        """Returns the end of an error message, which suggests options to use instead of unknown ones.

        Args:
            unknown: Arguments such as ``--epochs=3``, ``--epochs 3``, or ``epochs=3``.
        """
        hints: dict[str, str] = {}
        remaining = list(unknown)
        while remaining:
            text = remaining.pop(0)
            if re.match(r"-|[\w.-]+=", text):
                name, equals, value = text.partition("=")
                values = [value] if equals else self._values_after(text, remaining)
                hints[text if equals else " ".join([text, *values[:1]])] = self._suggest_option(name, values)
            else:
                hints[text] = self._explain_word(text)
        known = {written: hint for written, hint in hints.items() if hint}
        if len(known) < 2:
            return "".join(known.values())
        return "".join(f"\n  {written}: {hint.removeprefix('; ')}" for written, hint in known.items())

    def _values_after(self, option: str, unknown: list[str]) -> list[str]:
        """Returns the words after an unknown option, and removes them from the unknown words.

        Argparse takes the first of them as a positional argument, such as ``0.1`` in ``--lr0 0.1 pictures``.
        """
        words = self._words[self._words.index(option) + 1 :] if option in self._words else unknown
        values = list(words[:1]) if words and _is_value(words[0]) else []  # may contain an equals sign
        following = words[len(values) :] if values else []
        values += itertools.takewhile(lambda word: _is_value(word) and "=" not in word, following)
        for value in values:
            if value in unknown:
                unknown.remove(value)
        return values

    def _suggest_option(self, written: str, values: Sequence[str]) -> str:
        # Imported here, because only an error needs them, and they read the table of architectures.
        from ppcls.registry import suggest

        name = written.lstrip("-").replace("_", "-")
        if "." in name and name[0].islower():  # of Lightning, such as trainer.max_epochs
            return self._suggest_option(f"--{name.rpartition('.')[2]}", values)
        if "." in name:
            value = values[0] if values else "VALUE"
            return f"; to set a key of the config, use {set_keys({written.lstrip('-'): value})}"
        if f"--{name}" in self._options:
            return f"; {self._suggest_known(self._options[f'--{name}'], values).in_command()}"
        if f"--{name}" in self._elsewhere:
            return f"; --{name} is an option of {self._elsewhere[f'--{name}']}"
        hint = find_hint(self._command, name.lower(), values)
        if hint is not None and not self._accepts(hint):
            hint = find_hint(self._command, name.lower())
        if hint is not None:
            return f"; {self._without_typed(hint).in_command()}"
        # The dashes, which all names have, would make short names similar.
        names = {known.lstrip("-"): known for known in (*self._options, "--help") if known.startswith("--")}
        if name.startswith("no-") and name[3:] in names:
            return f"; leave out --{name[3:]}"
        near = [known for known in names if known.startswith(name) or name in known.split("-")]
        # Only names that a typing error explains: --trt is not --trust, and --pid-file is not --api-key-file.
        near += difflib.get_close_matches(name, names, n=1, cutoff=_TYPING_ERROR)
        if not near and len(names) > _MAX_LISTED:
            return ""
        return suggest(f"--{name}", [names[each] for each in near or names])

    def _without_typed(self, hint: Hint) -> Hint:
        """Returns a hint without the options that are on the command line already, such as ``--lr 0.1``.

        The folder of the images can be there twice, as an argument and as the value of an unknown option.
        """
        if hint.words[:1] == ("--data",) and self._words.count(hint.words[-1]) > 1:
            return Hint(text=f"leave it out, because the folder {hint.words[-1]} is there already")
        typed = {word.partition("=")[0] for word in self._words}
        words = list(hint.words)
        for position in reversed(range(len(words))):
            if words[position].startswith("--") and words[position] in typed:
                end = position + 1
                while end < len(words) and not re.match(r"--?[a-z]", words[end]):
                    end += 1
                del words[position:end]
        return Hint(tuple(words), hint.text) if words else hint

    def _suggest_known(self, option: Option, values: Sequence[str]) -> Hint:
        """Returns how to write an existing option that was written without dashes, or with underscores."""
        value = values[0].lower() if values else ""
        if value in ("false", "no", "off", "none"):
            name = option.field.replace("_", "-")
            return find_hint(self._command, name, values) or Hint(text=f"leave out {option.name}")
        if not values:
            return Hint((option.name,))
        if option.kind is bool:
            return find_value_hint(self._command, option.name.lstrip("-"), value) or Hint((option.name,))
        if value in ("true", "yes", "on") and "without_value" in option.argument.settings:
            return Hint((option.name,))
        if problem := option.reject(values[0]):
            return self._suggest_value(option, values[0]) or Hint(text=f"{option.name}: {problem}")
        return Hint((option.name, values[0]))

    def _accepts(self, hint: Hint) -> bool:
        """Returns whether the options in a hint accept the values after them."""
        pairs = itertools.pairwise(hint.words)
        return not any(self._options[name].reject(value) for name, value in pairs if self._takes(name, value))

    def _takes(self, name: str, value: str) -> bool:
        option = self._options.get(name)
        return option is not None and option.kind is not bool and not value.startswith("-")

    def _explain_word(self, word: str) -> str:
        """Returns why a word without an option is not accepted, if it follows an option without a value."""
        words = list(self._words)
        position = len(words) - 1 - words[::-1].index(word) if word in words else 0
        option = self._options.get(self._words[position - 1]) if position else None
        if option is not None and option.kind is bool:
            hint = find_value_hint(self._command, option.name.lstrip("-"), word)
            return f"; {option.name} has no value{f'; {hint.in_command()}' if hint is not None else ''}"
        is_value = position > 0 and words[position - 1].startswith("-")  # of an unknown option
        if "folder" in self._positional and not is_value and Path(word).is_dir():
            return "; one folder is expected, with train and val as its subfolders"
        if f"--{word.replace('_', '-')}" in self._options:
            return f"; options start with two dashes: --{word.replace('_', '-')}"
        choosing = [name for name, each in self._options.items() if word.lower() in each.choices]
        if len(choosing) == 1:
            return f"; use {choosing[0]} {word.lower()}"
        before = self._options.get(words[position - 2]) if position > 1 else None
        if before is not None and before.kind is not bool and not before.many:
            return f"; {before.name} has one value"
        if "--model" in self._options and "--model" not in self._words and self._is_model(word):
            return f"; use --model {shlex.quote(word)}"
        return ""


def _in_order(selected: Sequence[str], words: Sequence[str]) -> list[str]:
    """Returns selected words of a command line in its order. Of equal words, the last ones are selected."""
    remaining = Counter(selected)
    positions = []
    for position in reversed(range(len(words))):
        if remaining[words[position]]:
            remaining[words[position]] -= 1
            positions.append(position)
    return [words[position] for position in reversed(positions)]


def _is_value(word: str) -> bool:
    """Returns whether a word follows an option as its value, such as a negative number."""
    return not word.startswith("-") or bool(re.match(r"-[\d.]", word))


def wrap(text: str) -> str:
    """Returns a description with wrapped paragraphs. Argparse would join the paragraphs."""
    width = shutil.get_terminal_size().columns - 2
    return "\n\n".join(textwrap.fill(" ".join(part.split()), width) for part in text.split("\n\n"))
