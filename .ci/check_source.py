"""Checks what linters do not: sizes of folders, names of classes, parameters of functions, plain words.

Run by ``make lint``. Prints each finding as ``file:line: text``, and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

MOST_MODULES = 16  # per folder, without __init__.py
MOST_MODULES_AT_TOP = 10  # of ppcls/ itself
MOST_PARAMETERS = 6
# Parameters, and fields of dataclasses, that receive the whole config. A function takes the section or the
# values that it uses, so that its signature says what it depends on. Only functions that build or execute a
# run need all of it.
MOST_CONFIG_PARAMETERS = 20
# Branches on the type of a config section outside of its folder. Each of them is a place to find and change
# for a new section of that kind; a property or method of the base class is not.
MOST_TYPE_BRANCHES = 40
SECTION_MODULE = "ppcls.config.base.section"  # defines the class `Section`
CONFIG_MODULE = "ppcls.recipe.schema"  # defines the class `Config`; libraries have classes of the same name
LONGEST_CHAIN = 16  # modules that import one another when they are loaded
# One file per family: a reader looks for a name there, and the number of files grows with the models.
UNLIMITED_FOLDERS = {Path("ppcls/arch/families")}
# Constructors of models have the parameters of their papers; the notebook API has one option per short flag.
MANY_PARAMETERS = (Path("ppcls/arch"), Path("ppcls/classifier.py"))

# Layers of these folders are compiled for exports and faster trainings.
COMPILED_FOLDERS = (Path("ppcls/arch/layers"), Path("ppcls/arch/families"), Path("ppcls/deploy/in_graph"))

# Private names of libraries, for each module that may use them. A module says why it needs them, with which
# versions they were tried, and which test notices a change. Prefer a public name, or one of these modules.
PRIVATE_NAMES = {
    "benchmarks/pytorch/bare_loop.py": "_scale",
    "ppcls/arch/fused/amp.py": "_amp_dtype _amp_level _dygraph_tracer",
    "ppcls/arch/kernels/paddle_layers.py": (
        "_data_format _dilation _epsilon _groups _mean _momentum _normalized_shape _output_size "
        "_padding_algorithm _padding_mode _parameters _stride _updated_padding _use_global_stats _variance"
    ),
    "ppcls/data/loaders/paddle.py": "_cleanup_mmap_fds _try_shutdown_all _workers",
    "ppcls/data/transforms/dali_ops/internals.py": (
        "_conditionals_enabled _map_mags_to_params _op _operator_name _preprocess_pipe_func "
        "_preprocess_pipe_object _shutdown _utils"
    ),
    "ppcls/deploy/export/openvino.py": "_offline_transformations",
    "ppcls/engine/core/compiled.py": "_remove_op _rename_output _set_attr",
    "ppcls/engine/core/flat_buffers.py": "_set_dims _share_buffer_to _slice",
    "ppcls/engine/core/gradients.py": "_C_ops",
    "ppcls/engine/core/loss_scale.py": "_C_ops",
    "ppcls/engine/cuda_graph/flat_gradients.py": "_C_ops",
    "ppcls/optimizer/functional.py": (
        "_add_accumulator _create_master_weight _create_param_lr _get_accumulator_master "
        "_is_dtype_fp16_or_bf16"
    ),
    "ppcls/optimizer/paddle_optimizers.py": (
        "_accumulators _apply_optimize _beta1 _beta2 _centered _coeff "
        "_create_accumulators _create_global_learning_rate _create_param_lr _epsilon _global_learning_rate "
        "_grad_clip _master_weights _momentum _multi_precision _parameter_list _regularization_coeff "
        "_regularization_method _rescale_grad _rho _use_nesterov"
    ),
    "ppcls/report/visualdl.py": "_get_file_writer",
}
# Names with an underscore that are documented.
PUBLIC_NAMES = {"_asdict", "_exit", "_fields", "_make", "_replace", "_typeshed"}

# A command or the option -o, and a value in it, before the end of the command in a sentence.
COMMAND_NAMES = (
    "train|tune|eval|launch|calibrate|infer|export|verify|serve|runs|index|models|dataset|benchmark|doctor"
)
COMMAND_WITH_VALUE = re.compile(rf"(?:\bppcls (?=(?:{COMMAND_NAMES}|\0)\b)|(?<![\w-])-o )[^;:,.()`\n\0]*\0")
# These modules quote what the user has typed.
COMMANDS_OF_USERS = {Path("ppcls/config/base/overrides.py"), Path("ppcls/cli/short_options.py")}

# A number and a plural in a message, which would say "1 images".
_COUNTED = (
    "batches|checkpoints|classes|cores|epochs|evaluations|files|folders|images|labels|layers|lines|pictures|"
    "processes|rounds|rows|samples|shards|steps|threads|updates|workers"
)
COUNT = re.compile(rf"^ (?:[a-z-]+ )?(?:{_COUNTED})\b(?!/)")
# Texts without a number, such as NCHW images, and numbers that are not 1, such as constants.
NOT_COUNTED = re.compile(
    r"(?:\w+\.)?_?[A-Z][A-Z_]+|.*(?:data_format|layout|root|file|batches|kind|part|name|output_dir|world)"
)
# These texts are compared with those of earlier checkpoints.
STORED_COUNTS = {
    Path("ppcls/data/index/protocol.py"),
    Path("ppcls/data/sampling/epoch_samplers.py"),
    Path("ppcls/data/sampling/equal_pixels.py"),
}

# Words and phrases that need a second reading, and what to write instead.
WORDS = {
    r"\btells\b|\btell\b(?!\()|\btold\b": "report, return, log, name",
    r"\bwhom\b": "another sentence",
    r"\banew\b": "again; rebuild, restart",
    r"\blikewise\b": "too, also",
    r"\bin so many words\b": "explicitly",
    r"\bby (?:its|their) places?\b": "with file and line, with its path",
    r"\bgoes on\b|\bwent on\b|\bgoing on\b|\bto go on\b": "continues, resumes",
    r"\bnot there\b(?! is)": "missing",
    r"\ba class each\b": "one ... per ...",
    r"\b(?:sub-?folders?|folders?|files?|images?|pictures?|batch(?:es)?|cores?|lines?|steps?) an? "
    r"(?:class|rank|GPU|update|epoch|image|step|process)\b": "... per ...",
    r"\bthe patience of\b": "timeout",
    r"\bhushed\b|\bbegun\b": "quiet, started",
    r"\bany more\b": "no longer",
    r"\bwhat it is of\b|\bthat it is of\b": "the owner's name",
    r"\bheeds?\b|\bheeded\b": "obeys, uses",
    r"\bcures?\b": "fix, workaround",
    r"\bas yet\b": "yet",
    r"\bof ours\b": "our, ppcls's",
    r"\bso (?:many|long) at most\b|\bat most so (?:many|long)\b": "up to this number",
    r"\bstays? as it is\b|\bstays? as they are\b": "stays unchanged",
    r"\bmade smaller\b": "shrunk",
}
# Names of variables that do not say what they hold.
VAGUE_NAMES = {"found", "given", "made", "taken", "wanted"}
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in WORDS.items()]
_ANY_WORD = re.compile("|".join(f"(?:{pattern})" for pattern in WORDS), re.IGNORECASE)
CHECKED_TEXT = ["*.md", "*.yaml", "*.toml", "Makefile", "Dockerfile"]
CHECKED_CODE = ["ppcls/*.py", "benchmarks/*.py", "tools/*.py", "examples/*.py", ".ci/*.py"]


def main() -> int:
    """Prints all findings; returns the exit code."""
    sources = [Path(name) for name in git_files("ppcls/*.py", "benchmarks/*.py", "tools/*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    findings = [
        *check_folders(sources),
        *check_class_names(trees),
        *check_parameters(trees),
        *check_config_parameters(trees),
        *check_type_branches(trees),
        *check_variables(trees),
        *check_private_names(trees),
        *check_compilable(trees),
        *check_folder_cycles(trees),
        *check_chains(trees),
        *check_commands(trees),
        *check_counts(trees),
        *check_python_words([Path(name) for name in git_files(*CHECKED_CODE)]),
        *check_test_names([Path(name) for name in git_files("tests/*.py")]),
        *check_text_words([Path(name) for name in git_files(*CHECKED_TEXT)]),
    ]
    print("\n".join(findings) or "source: all checks passed")
    return bool(findings)


def git_files(*patterns: str) -> list[str]:
    """Returns the tracked files that match patterns of git."""
    listed = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True)  # noqa: S603, S607
    return [name for name in listed.stdout.splitlines() if Path(name).is_file()]


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Returns all nodes of a module. Most checks visit them, and `ast.walk` takes most of the time."""
    return list(ast.walk(tree))


def _calls(node: ast.AST, *functions: str) -> TypeGuard[ast.Call]:
    """Returns whether a node calls one of the functions by its plain name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions


def check_folders(sources: list[Path]) -> Iterator[str]:
    """Finds folders with too many modules."""
    modules = defaultdict(list)
    for path in sources:
        if path.name != "__init__.py":
            modules[path.parent].append(path)
    for folder, paths in sorted(modules.items()):
        most = MOST_MODULES_AT_TOP if folder == Path("ppcls") else MOST_MODULES
        if len(paths) > most and folder not in UNLIMITED_FOLDERS:
            yield f"{folder}: {len(paths)} modules, expected at most {most}; make a subfolder"


def check_class_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds classes with the same name."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    for name, (first, *others) in sorted(places.items()):
        if others:
            yield f"{first}: class {name} is also defined in {', '.join(others)}; rename one"


def check_parameters(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds functions with too many parameters, not counting ``self`` and ``cls``."""
    for path, tree in trees.items():
        if not {path, *path.parents}.isdisjoint(MANY_PARAMETERS):
            continue
        for node in nodes(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(argument.arg not in ("self", "cls") for argument in arguments)
            if count > MOST_PARAMETERS:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {count} parameters, expected at most "
                    f"{MOST_PARAMETERS}; group related ones in a dataclass"
                )


def check_config_parameters(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds too many parameters of `ppcls` that are annotated with the class of the whole config."""
    places = [
        f"{path}:{node.lineno} {node.name}({name})"
        for path, tree in trees.items()
        if path.parts[0] == "ppcls" and (names := _config_names(tree))
        for node in nodes(tree)
        for name, annotation in _parameters(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if _mentions(annotation, names)
    ]
    if len(places) > MOST_CONFIG_PARAMETERS:
        yield (
            f"{len(places)} parameters receive the whole config, expected at most {MOST_CONFIG_PARAMETERS}; "
            f"pass the section or values that the function uses: {', '.join(places)}"
        )


def check_type_branches(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds too many branches of `ppcls` on the type of a config section, outside of the section's folder.

    A branch is an `isinstance`, an `issubclass` or a class pattern of `match`, once per class. Base classes
    of the language of configs do not count: they ask whether a value is a section, not which one it is.
    """
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in trees.items()
        if path.parts[0] == "ppcls"
    }
    imports = {name: _imported_names(tree) for name, tree in modules.items()}
    classes = {
        f"{name}.{node.name}": [_resolve(base, name, imports) for base in node.bases]
        for name, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }

    @cache
    def is_section(name: str) -> bool:
        return name == f"{SECTION_MODULE}.Section" or any(map(is_section, classes.get(name, ())))

    places = []
    for name, tree in modules.items():
        folder = name.rpartition(".")[0]
        for node in nodes(tree):
            for expression in _tested_classes(node):
                target = _resolve(expression, name, imports)
                owner = target.rpartition(".")[0].rpartition(".")[0]
                if is_section(target) and owner not in (folder, SECTION_MODULE.rpartition(".")[0]):
                    places.append(f"{name}:{expression.lineno} {target.rpartition('.')[2]}")
    if len(places) > MOST_TYPE_BRANCHES:
        yield (
            f"{len(places)} branches on the type of a section, expected at most {MOST_TYPE_BRANCHES}; ask a "
            f"property or method of its base class: {', '.join(places)}"
        )


def _tested_classes(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the classes that a node compares with the type of a value."""
    if isinstance(node, ast.MatchClass):
        yield node.cls
    elif _calls(node, "isinstance", "issubclass"):
        pending = [node.args[1]]
        while pending:
            expression = pending.pop()
            if isinstance(expression, ast.Tuple):
                pending += expression.elts
            elif isinstance(expression, ast.BinOp):
                pending += [expression.left, expression.right]
            else:
                yield expression


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Returns what each imported name stands for, such as ``ppcls.loss.base.Loss``."""
    names = {}
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return names


def _resolve(expression: ast.expr, module: str, imports: dict[str, dict[str, str]]) -> str:
    """Returns the full name of the class that an expression in a module stands for."""
    if isinstance(expression, ast.Subscript):  # a generic class
        expression = expression.value
    first, *attributes = ast.unparse(expression).split(".")
    name = ".".join([imports[module].get(first, f"{module}.{first}"), *attributes])
    while (owner := name.rpartition(".")[0]) in imports and name.rpartition(".")[2] in imports[owner]:
        name = imports[owner][name.rpartition(".")[2]]  # imported there from another module
    return name


def _parameters(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yields the names and annotations of a function's parameters, or of a dataclass's fields."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        stars = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars):
            if argument.annotation is not None:
                yield argument.arg, argument.annotation
    elif isinstance(node, ast.ClassDef):
        if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield field.target.id, field.annotation


def _config_names(tree: ast.Module) -> set[str]:
    """Returns the expressions by which a module refers to the class `Config`."""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config"}
    package, _, module = CONFIG_MODULE.rpartition(".")
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module, alias.name) == (CONFIG_MODULE, "Config"):
                    names.add(alias.asname or alias.name)
                elif (node.module, alias.name) == (package, module):
                    names.add(f"{alias.asname or alias.name}.Config")
        elif isinstance(node, ast.Import):
            names |= {
                f"{alias.asname or alias.name}.Config" for alias in node.names if alias.name == CONFIG_MODULE
            }
    return names


def _mentions(annotation: ast.expr, names: set[str]) -> bool:
    """Returns whether an annotation contains one of the names; text is parsed as an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:  # a text in Literal or Annotated
                continue
            if _mentions(node, names):
                return True
        elif isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in names:
            return True
    return False


def check_variables(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds variables with a vague name; a parameter may be called ``found``, beside ``expected``."""
    for path, tree in trees.items():
        for node in nodes(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES:
                yield f"{path}:{node.lineno}: variable {node.id}: name what it holds"


def check_private_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds private names of libraries, unless `PRIVATE_NAMES` lists them; and listed names without a use."""
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in trees}
    defined = {path: set(_defined_names(tree)) for path, tree in trees.items()}
    everywhere = set().union(*defined.values())
    for path, tree in trees.items():
        known = defined[path].union(
            *(defined[modules[name]] for name in _imported_modules(tree) if name in modules)
        )
        used = defaultdict(list)
        for owner, name, line in _private_uses(tree):
            is_own = name in (everywhere if owner in ("self", "cls", "super()") else known)
            if name not in PUBLIC_NAMES and not is_own:
                used[name].append(line)
        allowed = set(PRIVATE_NAMES.get(str(path), "").split())
        for name in sorted(used.keys() - allowed):
            yield (
                f"{path}:{used[name][0]}: {name} is private in its library; use a public name, or say in the "
                "module why there is none, and add the name to PRIVATE_NAMES"
            )
        for name in sorted(allowed - used.keys()):
            yield f"{path}: {name} is not used; remove it from PRIVATE_NAMES"
    for name in PRIVATE_NAMES.keys() - set(map(str, trees)):
        yield f"{name}: no such module; remove it from PRIVATE_NAMES"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _defined_names(tree: ast.Module) -> Iterator[str]:
    """Yields the private names that a module defines: functions, classes, variables, attributes of `self`."""
    attributes = {
        id(argument)
        for node in nodes(tree)
        if _calls(node, "getattr", "setattr", "hasattr")
        for argument in node.args
    }
    for node in nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and _is_private(node.name):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and _is_private(node.id):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_private(node.attr):
            if ast.unparse(node.value) in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Constant) and id(node) not in attributes and _is_private(str(node.value)):
            yield node.value  # for example a sublayer, which is added by its name


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _private_uses(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yields owner, name and line of each private name that a module imports or reads outside annotations."""
    annotations = {
        id(child)
        for node in nodes(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if annotation is not None
        for child in ast.walk(annotation)
    }
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and id(node) not in annotations:
            yield ast.unparse(node.value), node.attr, node.lineno
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            for part in {part for name in names for part in name.split(".") if _is_private(part)}:
                yield "", part, node.lineno
        elif (
            _calls(node, "getattr", "setattr", "hasattr")
            and isinstance(name := node.args[1], ast.Constant)
            and _is_private(str(name.value))
        ):
            yield ast.unparse(node.args[0]), str(name.value), node.lineno


def check_compilable(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds what Paddle 2.6 cannot compile: ``super()``, and annotations of names in branches and loops."""
    functions = (
        (path, node)
        for path, tree in trees.items()
        if any(path.is_relative_to(folder) for folder in COMPILED_FOLDERS)
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
    )
    for path, function in functions:
        for node in ast.walk(function):
            if _calls(node, "super"):
                yield f"{path}:{node.lineno}: Paddle 2.6 cannot compile super(); name the base class"
            elif isinstance(node, (ast.If, ast.For, ast.While)):
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.AnnAssign):
                        yield f"{path}:{child.lineno}: Paddle 2.6 cannot compile an annotation in a branch"


def check_folder_cycles(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds pairs of folders that import each other."""
    packages = {".".join(path.parent.parts) for path in trees}
    arrows: dict[tuple[str, str], str] = {}
    for path, tree in trees.items():
        source = ".".join(path.parent.parts)
        if source in ("ppcls", "tools"):
            continue  # ppcls/ holds the public API above all folders and plain helpers below them
        annotations = {
            id(child)
            for node in nodes(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for child in node.body
        }
        for node in nodes(tree):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("ppcls"):
                continue
            if id(node) in annotations:
                continue  # the name is not imported when the program runs
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                target = inner if inner in packages else node.module or ""
                while target not in packages:
                    target = target.rpartition(".")[0]
                if target not in (source, "ppcls"):
                    arrows.setdefault((source, target), f"{path}:{node.lineno}")
    for (source, target), place in sorted(arrows.items()):
        if source < target and (target, source) in arrows:
            yield f"{place}: {source} and {target} import each other (also {arrows[target, source]})"


def check_chains(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds the longest chain of imports, without those in functions and for annotations."""
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree for path, tree in trees.items()
    }
    imports: dict[str, set[str]] = {}
    for name, tree in modules.items():
        targets = {
            inner if (inner := f"{node.module}.{alias.name}") in modules else node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        imports[name] = {target for target in targets if target in modules} - {name, "ppcls"}

    @cache
    def longest(name: str) -> tuple[str, ...]:
        return name, *max(map(longest, imports[name]), key=len, default=())

    chain = max(map(longest, imports), key=len)
    if len(chain) > LONGEST_CHAIN:
        yield (
            f"a chain of {len(chain)} imports, expected at most {LONGEST_CHAIN}; import from "
            f"a lower module, or under TYPE_CHECKING: {' → '.join(chain)}"
        )


def check_commands(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds commands that a message builds from values, instead of calling `ppcls.commands`.

    Such a command lacks quotes around names with spaces, and no test can find and run it.
    """
    for path, tree in trees.items():
        for node in nodes(tree):
            if not isinstance(node, ast.JoinedStr) or path in COMMANDS_OF_USERS:
                continue
            parts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values]
            if match := COMMAND_WITH_VALUE.search("".join(parts)):
                text = match[0].strip().replace("\0", "{…}")
                yield f"{path}:{node.lineno}: {text}: use command_line or set_keys of ppcls.commands"


def check_counts(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Finds a number before a plural in a message of ppcls, which is wrong for the number 1."""
    for path, tree in trees.items():
        if path in STORED_COUNTS or path.parts[0] != "ppcls":
            continue
        for node in nodes(tree):
            for value, text in pairwise(node.values) if isinstance(node, ast.JoinedStr) else ():
                if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                    continue
                number = ast.unparse(value.value)
                is_real = value.format_spec is not None and ast.unparse(value.format_spec) != "f','"
                is_quoted = value.conversion != -1
                if is_real or is_quoted or NOT_COUNTED.fullmatch(number) or number.startswith("counted("):
                    continue
                if match := COUNT.match(str(text.value)):
                    yield f"{path}:{node.lineno}: {{{number}}}{match[0]}: use counted of ppcls.errors"


def check_python_words(paths: list[Path]) -> Iterator[str]:
    """Finds words in names, docstrings, messages and comments."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if path != Path(".ci/check_source.py"):  # which lists the words
                yield from _check_line(path, number, line)


def check_test_names(paths: list[Path]) -> Iterator[str]:
    """Finds words in the names of tests."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("def test_"):
                yield from _check_line(path, number, line)


def check_text_words(paths: list[Path]) -> Iterator[str]:
    """Finds words in documents, outside of code blocks."""
    for path in paths:
        in_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            in_code ^= line.lstrip().startswith("```")
            if not in_code:
                yield from _check_line(path, number, line)


def _check_line(path: Path, number: int, line: str) -> Iterator[str]:
    words = re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", line)  # those of names too
    if not _ANY_WORD.search(words):  # one search per line instead of one per pattern
        return
    for pattern, advice in _PATTERNS:
        if match := pattern.search(words):
            yield f"{path}:{number}: '{match[0]}': write plainly ({advice})"


if __name__ == "__main__":
    sys.exit(main())
