"""Checks an exported program of Paddle before Paddle loads it.

A program can contain operators that read and write files, open connections or call Python, and Paddle runs
them without a question. Therefore it is parsed here first. Paddle receives a copy of what was understood,
because two parsers that read the same bytes differently could be played off against each other, and because
the file could change after the check.
"""

from __future__ import annotations

import os
from pathlib import Path

from ppcls.deploy.models.programs.legacy import read_legacy
from ppcls.deploy.models.programs.parameters import check_parameters
from ppcls.deploy.models.programs.parts import MAX_PROGRAM_BYTES, ProgramError
from ppcls.deploy.models.programs.pir import read_pir
from ppcls.errors import UserError
from ppcls.files import open_regular

_READERS = {".json": read_pir, ".pdmodel": read_legacy}


def read_program(program: Path, weights: Path) -> bytes:
    """Returns a copy of a program that contains only what was checked.

    Args:
        program: File of the program, ``inference.json`` or ``inference.pdmodel``.
        weights: File of its parameters.

    Raises:
        UserError: A file cannot be read or is damaged, the parameters are not those of the program, or the
            program does more than compute a network.
    """
    file = program
    try:
        with open_regular(program) as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MAX_PROGRAM_BYTES:
                raise ProgramError(f"expected at most {MAX_PROGRAM_BYTES:,} bytes, found {size:,}")
            copy, parameters = _READERS[program.suffix](stream.read())
        file = weights
        with open_regular(weights) as stream:
            check_parameters(stream, parameters)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except ProgramError as error:
        raise UserError(
            f"{file}: not an exported network: {error}; export the model again, or, if you trust its source, "
            "load it with --trust"
        ) from None
    return copy
