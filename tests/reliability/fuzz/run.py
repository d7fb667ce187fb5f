"""Fuzzes the readers of untrusted bytes with Atheris (libFuzzer): `make fuzz MINUTES=60`.

Each target starts from its seeds in ``corpus/`` and from what earlier runs found in ``output/fuzz``. An input
that a reader does not handle ends the target and is saved as ``output/fuzz/findings/TARGET-*``. Fix the
reader, then keep the input in ``corpus/``, where tests/reliability/test_fuzz_corpus.py reads it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PARTS = ["ppcls", "pickletools", "tarfile", "zipfile", "yaml", "h11", "starlette", "python_multipart", "PIL"]


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzzes one target in this process, until libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=PARTS):
        from targets import EXPECTED, TARGETS

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:

        def run(data: bytes) -> None:
            with suppress(*EXPECTED):
                TARGETS[name](data, Path(folder))

        atheris.Setup([name, *arguments], run)
        atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names in targets.py; all by default")
    parser.add_argument("--minutes", type=float, default=60.0, help="for each target (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "output/fuzz")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(HERE)]
    from targets import MEMORY_MIB, SECONDS, TARGETS

    findings = options.output / "findings"
    findings.mkdir(parents=True, exist_ok=True)

    def fuzz_in_process(name: str) -> int:
        corpus = options.output / name
        corpus.mkdir(exist_ok=True)
        limits = [f"-max_total_time={options.minutes * 60:.0f}", f"-timeout={SECONDS * options.jobs}"]
        limits += [f"-rss_limit_mb={MEMORY_MIB}", "-max_len=32768", "-print_final_stats=1"]
        command = [sys.executable, __file__, "--one", name, *limits]
        command += [f"-artifact_prefix={findings}/{name}-", str(corpus), str(HERE / "corpus" / name)]
        with (options.output / f"{name}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        minutes = (used.ru_utime + used.ru_stime) / 60
        text = (options.output / f"{name}.log").read_text(errors="replace")
        tried = re.findall(r"number_of_executed_units: (\d+)|^#(\d+)\s", text, re.MULTILINE)
        count = max((int(part) for pair in tried for part in pair if part), default=0)
        result = f"a finding: see {log.name}" if code else "no finding"
        print(f"{name}: {count} inputs tried in {minutes:.1f} minutes of CPU time, {result}", flush=True)
        return code

    with ThreadPoolExecutor(options.jobs) as pool:
        failed = any(list(pool.map(fuzz_in_process, options.targets or TARGETS)))
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.path[:0] = [str(ROOT), str(HERE)]
        fuzz(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
