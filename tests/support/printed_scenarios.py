"""For each command that ppcls prints with values: how to see it, and how to run it."""

from __future__ import annotations

from dataclasses import dataclass, field

MODEL = "--model ShuffleNetV2_x0_25 --image-size 32 --batch-size 4 --epochs 1"
TRAIN = f"ppcls train 'my pets' {MODEL}"
EVALUATE = "ppcls eval --model 'my run' --trust --data others"
AUDIT = "ppcls dataset audit 'your pets' --model 'my run' --image-size 32 --out a"
BROKEN = f"cp -a 'my pets' broken && echo no > broken/cats/bad.jpg; ppcls train broken {MODEL}"
BUNDLE = "ppcls export --model 'my run' --trust --format bundle --runners python --output bundle"
TARS = "ppcls dataset convert webdataset 'my pets' --out 'my tars' && "
BOTH = "cp -a 'my run' both && cp -a 'my pets/cats' 'my pets/dogs' both && ppcls train both"
TABLE = (
    'mkdir \'my scans\'; for kind in cats dogs; do for i in 0 1 2 3 4; do cp "my pets/$kind/$i.jpg" "my '
    'scans/$kind$i.jpg"; done; done; '
    "(echo id,breed; cd 'my scans'; ls | sed 's/\\(.*\\).\\.jpg/&,\\1/') > scans.csv"
)
CUT = (
    "cp -a 'my run' cut && rm -r cut/checkpoints cut/latest cut/best_model* cut/epoch_*; ppcls train "
    "--resume cut"
)
DISTILL = (
    "ppcls train -c mine.yaml --print-config -o 'Arch={name: DistillationModel, class_num: 2, "
    "freeze_params_list: [True, False], models: [{Teacher: {name: ShuffleNetV2_x0_25}}, "
    "{Student: {name: ShuffleNetV2_x0_25}}]}' "
    "'Loss={Train: [{DistillationGTCELoss: {model_names: [Student]}}], Eval: [{CELoss: {}}]}' "
    "'Metric={Eval: [{DistillationTopkAcc: {model_key: Student, topk: [1]}}]}' "
)
ADVISE = """python -c "
from ppcls.bench.loader.advice import advise
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.results.schema import Quantity
print(advise(LoaderSetting('DALI', 2, 3), LoaderSetting('paddle.io', 1), Quantity((2.0, 2.1, 2.2), ''))[1])"
"""
WRITE = """python -c "
from pathlib import Path
from ppcls.bench.loader.write_config import write_config
write_config(Path('aliased.yaml'), Path('best.yaml'), {'DataLoader.Train.loader.num_workers': 2})"
"""


@dataclass(frozen=True)
class Scenario:
    """How to see a command, and how to run it.

    Attributes:
        command: Command line after which the command is printed, in a folder with the images ``my pets``, the
            finished run ``my run`` and its config ``mine.yaml``.
        run: Complete command, in which ``PRINTED`` is the printed text.
        values: What a reader writes instead of words in capital letters.
        code: Exit code of the printed command.
        needs: What is missing here, so that the command is only parsed, such as ``two GPUs``.
    """

    command: str
    run: str = "PRINTED"
    values: dict[str, str] = field(default_factory=dict)
    code: int = 0
    needs: str = ""


SCENARIOS = {
    "ppcls/arch/distillation_model.py: set_keys(weights)": Scenario(
        DISTILL, DISTILL + "PRINTED", {"FILE": "'my run/best_model'"}
    ),
    "ppcls/bench/loader/advice.py: set_keys(config_values(best))": Scenario(
        ADVISE, "ppcls train -c mine.yaml --output tuned PRINTED"
    ),
    "ppcls/bench/loader/write_config.py: set_keys(values)": Scenario(
        WRITE, "ppcls train -c aliased.yaml --output written PRINTED"
    ),
    "ppcls/classifier.py: command_line('verify', folder, '--extract', 'FOLDER')": Scenario(
        f"{BUNDLE} && python -c \"from ppcls import Classifier; Classifier.from_bundle('bundle.zip')\"",
        values={"FOLDER": "extracted"},
    ),
    "ppcls/cli/arguments/parser.py: set_keys({written.lstrip('-'): value})": Scenario(
        "ppcls train 'my pets' --Global.epochs 3", "ppcls train 'my pets' --print-config PRINTED"
    ),
    "ppcls/cli/dataset.py: command_line('train', images)": Scenario(
        f"{TABLE} && ppcls dataset labels scans.csv --images 'my scans'", f"PRINTED {MODEL} --output scanned"
    ),
    "ppcls/cli/dataset_audit.py: "
    "command_line('dataset', 'audit', options.source, '--fix', options.out / FIXES)": Scenario(
        f"cp -a 'my pets' 'your pets' && {AUDIT}"
    ),
    "ppcls/cli/dataset_audit.py: "
    "command_line('dataset', 'audit', options.source, '--undo', journal)": Scenario(
        f"cp -a 'my pets' 'your pets' && {AUDIT} && ppcls dataset audit 'your pets' --fix a/fixes.csv --out a"
    ),
    "ppcls/cli/dataset_files.py: command_line('dataset', 'check', *place)": Scenario(
        "cp -a 'my pets' broken && for i in broken/*/*; do echo no > $i; done; ppcls dataset stats broken "
        "--out s",
        code=2,
    ),
    "ppcls/cli/eval.py: set_keys({_PART: 'null'})": Scenario(
        f"cp -a 'my pets' others; {EVALUATE} -o DataLoader.Eval.dataset.part=val", f"{EVALUATE} PRINTED"
    ),
    "ppcls/cli/main.py: command_line(command, name)": Scenario(
        "ppcls --print-config train 'my pets'", "PRINTED 'my pets'"
    ),
    "ppcls/cli/shared_options.py: command_line('launch', f'--gpus={gpus[1]}', 'train', 'FOLDER')": Scenario(
        "ppcls train 'my pets' --device 0,1", values={"FOLDER": "'my pets'"}, needs="two GPUs"
    ),
    "ppcls/cli/short_options.py: command_line('train', folder)": Scenario(
        "ppcls train -c fashion_mnist_fast --data 'my pets'", f"PRINTED {MODEL}"
    ),
    "ppcls/cli/short_options.py: set_keys(keys)": Scenario(
        "cp -a 'my pets' others; ppcls eval -c fashion_mnist_fast --data others",
        "ppcls eval -c fashion_mnist_fast PRINTED --print-config",
    ),
    "ppcls/data/bad_images/lists.py: "
    "set_keys({f'DataLoader.{key}.dataset.on_error': 'skip' for key in strict})": Scenario(
        f"{BROKEN} --output failed", f"ppcls train broken {MODEL} --output skipped PRINTED"
    ),
    "ppcls/data/bad_images/lists.py: "
    "command_line('dataset', 'check', *(roots[:1] or ('-c', 'CONFIG')))": Scenario(
        f"{BROKEN} --output failed", code=2
    ),
    "ppcls/data/index/folders.py: set_keys(_BALANCED)": Scenario(
        "cp -a 'my pets' uneven && for i in $(seq 100); do cp uneven/cats/0.jpg uneven/cats/c$i.jpg; done; "
        f"ppcls train uneven {MODEL} --output first",
        f"ppcls train uneven {MODEL} --output second PRINTED",
    ),
    "ppcls/data/records/shard.py: command_line('dataset', 'index', path)": Scenario(
        f"{TARS} echo v9 > \"$(ls 'my tars'/*.idx)\"; ppcls dataset stats -c tars.yaml --out s",
        "rm 'my tars'/*.idx && PRINTED",  # the message says to delete it first
    ),
    "ppcls/deploy/bundle/card.py: command_line('infer', '--model', '.', bundle.golden[0].image)": Scenario(
        f"{BUNDLE} && cat bundle/README.md", "cd bundle && PRINTED"
    ),
    "ppcls/deploy/models/programs/formats.py: "
    "command_line('verify', folder, '--extract', 'FOLDER')": Scenario(
        f"{BUNDLE} && ppcls infer --model bundle.zip 'my pets'", values={"FOLDER": "extracted"}
    ),
    "ppcls/engine/head/expectation.py: "
    "command_line('train', '-c', self.output / 'config.yaml', *options, '--output', output)": Scenario(
        "ppcls train 'my pets' --pretrained --model EfficientNet_lite0 --image-size 32 --epochs 1 --output "
        "tuned"
    ),
    "ppcls/engine/train.py: command_line('infer', '--model', model, *trust, 'IMAGE')": Scenario(
        f"{TRAIN} --output again", values={"IMAGE": "'my pets/cats/0.jpg'"}
    ),
    "ppcls/engine/train.py: command_line('export', '--model', model, *trust)": Scenario(
        f"{TRAIN} --output again"
    ),
    "ppcls/engine/train.py: command_line('serve', '--model', model, *trust)": Scenario(
        f"{TRAIN} --output again"
    ),
    "ppcls/recipe/folder_hints.py: command_line('dataset', 'labels', table, '--images', images)": Scenario(
        f"{TABLE}; ppcls train 'my scans'"
    ),
    "ppcls/recipe/folder_hints.py: command_line('train', images)": Scenario(
        f"{TABLE}; ppcls train 'my scans'",
        f"ppcls dataset labels scans.csv --images 'my scans' && PRINTED {MODEL} --output scanned",
    ),
    "ppcls/recipe/folder_hints.py: command_line('train', '-c', root)": Scenario(
        "ppcls train quickstart", "PRINTED --print-config"
    ),
    "ppcls/recipe/folder_hints.py: command_line('train', 'FOLDER', '--model', models[-1])": Scenario(
        "ppcls train resnet18",
        "PRINTED --image-size 32 --epochs 1 --output eighteen -o Arch.pretrained=False",
        {"FOLDER": "'my pets'"},
    ),
    "ppcls/recipe/folder_hints.py: command_line('dataset', 'digits')": Scenario("ppcls train nowhere"),
    "ppcls/recipe/resume_config.py: "
    "command_line('train', requested, '--resume', '--output', 'RUN')": Scenario(
        "ppcls train --resume 'my pets'", f"PRINTED {MODEL}", {"RUN": "'new run'"}
    ),
    "ppcls/recipe/resume_config.py: command_line('train', '--resume', 'RUN')": Scenario(
        "ppcls train --resume", values={"RUN": "'my run'"}
    ),
    "ppcls/recipe/resume_config.py: command_line('train', '--resume', 'RUN') (2)": Scenario(
        "ppcls train --resume 'my pets'", values={"RUN": "'my run'"}
    ),
    "ppcls/recipe/resume_config.py: "
    "command_line('train', '-c', path / _CONFIG, '-o', 'Global.checkpoints=auto')": Scenario(CUT),
    "ppcls/recipe/resume_config.py: command_line('train', '--output', folder, '--resume')": Scenario(BOTH),
    "ppcls/recipe/resume_config.py: command_line('train', '--resume', folder)": Scenario(
        "ppcls train 'my run'"
    ),
    "ppcls/report/summary/certainty.py: command_line('dataset', 'audit', pictures)": Scenario(
        "cat 'my run/report.html'", "PRINTED --model 'my run' --image-size 32 --out a"
    ),
    "ppcls/search/batch_size.py: set_keys({name: largest, 'Global.update_freq': freq})": Scenario(
        "ppcls train -c mine.yaml --output small --find-batch-size",
        "ppcls train -c mine.yaml --output found PRINTED",
    ),
    "ppcls/search/tune.py: set_keys(best.user_attrs['values'])": Scenario(
        "ppcls tune -c mine.yaml --search Optimizer.lr.learning_rate=log:0.001..0.01 --trials 1 -o "
        "Global.output_dir=trials",
        "ppcls train -c mine.yaml --output best PRINTED",
    ),
}

# Commands with the options and settings that messages mention, and no document, help or scenario shows.
MORE = [
    f"{TRAIN} --auto-augment RandAugment --random-erasing 0.25 --label-smoothing 0.1 --class-weights "
    "balanced --val-split 0.25 --seed 2 --increment-output --output 'my run'",
    f"{TRAIN} --color-jitter 0.4 --on-error skip --dry-run --figures figures.json --output figured",
    "ppcls train 'my pets' --model MobileNetV3_small_x0_35 --image-size 32 --dropout 0.2 --dry-run",
    "ppcls train 'my pets' --model SwinTransformer_tiny_patch4_window7_224 --drop-path 0.1 --print-config",
    "ppcls train -c ResNet50 --demo-data --model ShuffleNetV2_x0_25 --image-size 32 --batch-size 32 --output "
    "demo",
    "ppcls train -c mine.yaml --amp --output mixed -o AMP.level=O1 AMP.dtype=bfloat16",
    "ppcls train -c mine.yaml --amp --output whole -o AMP.use_amp=False",
    "ppcls train -c mine.yaml --output logged -o Global.loggers=[tensorboard]",
    "ppcls train -c 'my run/config.yaml' -o Global.checkpoints=auto",
    "ppcls export --model 'my run' --trust --format onnx --precision int8 --output int8 --calibration-images "
    "16 --int8-activations signed --calibration-data 'my pets' --calibration minmax --max-accuracy-loss 100",
    "ppcls export --model 'my run' --trust --preprocess all --output whole",
    "ppcls calibrate --model 'my run' --trust --unknown --score max_probability",
    "ppcls calibrate --model 'my run' --trust --unknown --score energy",
    "ppcls calibrate --model 'my run' --trust --unknown --score distance",
    "ppcls infer --model 'my run' --trust --min-score 0.1 --on-error skip 'my pets'",
    "ppcls dataset resize 'my pets' --max-size 24 --follow-links --out small && ppcls dataset convert "
    "webdataset small --shards 2 --names 'my run/label_list.txt' --out tars && ppcls dataset stats small "
    "--channels 3 --out s && ppcls dataset photos 32 --seed 3 --out photos",
]
SERVED = [
    "ppcls serve --model bundle --verify --max-connections 10 --max-images 4 --max-waiting 8",
    "ppcls serve --model 'my run' --trust --models-folder . --max-models 2 --api-key-file keys.txt",
]
# Options and settings that are not run here, and why.
NOT_RUN = {
    **dict.fromkeys(("--gpus", "--devices"), "needs a GPU"),
    **dict.fromkeys(("Global.device=gpu", "Infer.engine=tensorrt"), "needs a GPU"),
    **dict.fromkeys(
        ("--nnodes", "--rank", "--master", "--host", "--ips", "--job_id", "--log_dir", "--log_level"),
        "of Paddle's launcher, for several machines; tests/cli/test_launch.py checks how they are passed on",
    ),
    **dict.fromkeys(
        ("--max_restart", "--elastic_level", "--elastic_timeout", "--start_port"), "of Paddle's launcher"
    ),
    **dict.fromkeys(("--std", "--gpu-architecture"), "of nvcc"),
    **dict.fromkeys(("--torch", "--torch-compile"), "need PyTorch"),
    "--shm-size": "of Docker",
    "--version": "tests/cli/test_main.py runs it",
    "--config": "in a message of argparse, which ppcls replaces",
    "Infer.transforms=…": "not a command: the reader writes the transforms",
}
