"""Loading of an `Encoder` from a Hugging Face checkpoint folder (safetensors, else pickles).

The checkpoint's family renames keys. Errors list missing, unexpected and mis-shaped keys together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from model.artifact.mapped import mapped_tensors
from model.config.encoder import EncoderConfig
from model.encoder.adapter_tensors import Matrices, adapter_parameters, low_rank_matrices, stacked
from model.encoder.encoder import Encoder
from model.encoder.picture_tensors import picture_parameters
from model.errors import CheckpointError, shortened
from model.families.family import Family, SinusoidLayout
from model.families.jina_v3 import PEFT_WEIGHTS, folder_name, task_folders, task_names
from model.families.registry import FAMILIES, read_config, read_fields
from model.pickles import pickled_state, pickled_tensors
from model.sources.files import is_pickle, weight_files


def sinusoid_table(layout: SinusoidLayout, config: EncoderConfig) -> Tensor:
    """Return the position table `[n, d]` of an encoder or decoder without a stored one, float32.

    Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762), in the two layouts of
    transformers. In both, the sines precede the cosines. Frequency i is 10000^(−2i/d), computed in
    float64 (`marian`), or 10000^(−i/(d/2 − 1)), in float32.

    Raises:
        MemoryError, RuntimeError: the table does not fit into memory; check its size first.

    """
    after_padding = config.embeddings.positions == "table_after_padding"
    offset = config.pad_token_id + 1 if after_padding else 0
    marian, size = layout == "marian", config.hidden_size
    dtype = torch.float64 if marian else torch.float32
    half = (size + 1) // 2 if marian else size // 2
    step = math.log(10000) / (size / 2 if marian else half - 1)
    with torch.device("cpu"):
        frequencies = torch.exp(torch.arange(half, dtype=dtype) * -step)
        positions = torch.arange(config.max_position_embeddings + offset, dtype=dtype)
        angles = positions[:, None] * frequencies
        table = torch.cat((angles.sin(), angles.cos()[:, : size // 2]), dim=1).float()
        table = functional.pad(table, (0, size - table.shape[1]))
    if after_padding:
        table[config.pad_token_id] = 0
    return table


Made = TypeVar("Made", bound=nn.Module)


def load_checkpoint(
    folder: Path, config: EncoderConfig | None = None, apart: Collection[str] = ()
) -> Encoder:
    """Build the encoder of a checkpoint, in float32 and in evaluation mode.

    `apart` are keys of tensors of other modules, beside the keys that the family ignores.
    """
    config = config or read_config(folder)
    family = FAMILIES[config.model_type]
    tensors = collect(folder, family, lambda keys: family.encoder_keys(keys - set(apart)))
    if config.adapters:
        tensors = _with_adapters(folder, config, tensors)
    if patches := config.embeddings.patches:
        antialias = family.antialiased_positions
        tensors = picture_parameters(config, patches, tensors, str(folder), antialias=antialias)
    return build_encoder(config, tensors, source=str(folder))


def _with_adapters(
    folder: Path, config: EncoderConfig, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the parameters of an encoder with adapters, from its weights or the tasks' folders."""
    fields, source = read_fields(folder), str(folder)
    tasks = task_names(folder, fields)
    matrices, others = low_rank_matrices(tensors)
    folders = task_folders(folder, tasks)
    if folders and config.adapters:
        family = FAMILIES[config.model_type]
        of_tasks = [
            (_peft_matrices(own / PEFT_WEIGHTS, family), peft.lora_alpha / peft.r)
            for own, peft in folders.items()
        ]
        matrices = stacked(of_tasks, others, config.adapters, source)
    elif matrices:
        scale = float(fields.get("lora_alpha", 1)) / fields.get("lora_rank", 4)
        for pair in matrices.values():
            pair["B"] = scale * pair["B"]
    else:
        raise CheckpointError(
            f"{source}: config.json names tasks in lora_adaptations ({', '.join(tasks)}), and "
            f"neither its weights nor folders such as {folder_name(tasks[0])} hold their adapters: "
            "fetch all files, or remove lora_adaptations to serve the model without tasks"
        )
    return adapter_parameters(config, matrices, others, source)


def _peft_matrices(path: Path, family: Family) -> Matrices:
    """Return the matrices of a task's adapter by the encoder's maps."""
    renamed = {}
    for key, tensor in read_tensors(path).items():
        name = family.encoder_key(key.removeprefix("base_model.model."))
        if name is None:
            continue
        if ".lora_" not in name:
            raise CheckpointError(f"{path} holds {key}, which is not a matrix of an adapter")
        renamed[name] = tensor
    return low_rank_matrices(renamed)[0]


def collect(
    folder: Path, family: Family, names_of: Callable[[set[str]], Mapping[str, str]]
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's module, by the module's own keys.

    `names_of` maps all keys of the checkpoint to the module's: key → its name in the module.
    """
    paths = weight_files(folder)
    keys = {key for path in paths for key in tensor_keys(path)}
    family.check_supported(keys, str(folder))
    names = names_of(keys)
    tensors: dict[str, Tensor] = {}
    for path in paths:
        for key, tensor in read_tensors(path, names.__contains__).items():
            converted = family.convert(names[key], tensor)
            if duplicates := sorted(tensors.keys() & converted.keys()):
                raise CheckpointError(f"{folder} holds {duplicates[0]} twice")
            tensors |= converted
    return tensors


def build_encoder(config: EncoderConfig, tensors: Mapping[str, Tensor], source: str) -> Encoder:
    """Return an encoder that holds exactly these tensors.

    `source` names their origin in error messages.
    """
    return build(lambda: Encoder(config), config, tensors, source)


def build(
    make: Callable[[], Made], config: EncoderConfig, tensors: Mapping[str, Tensor], source: str
) -> Made:
    """Return a module with an encoder's or a decoder's layers that holds exactly these tensors.

    `make` constructs the module, whose parameter values are replaced; `config` is of its layers.
    """
    _check_sizes(config, tensors, source)
    return filled(make, _with_sinusoids(config, tensors), source)


def filled(make: Callable[[], Made], tensors: Mapping[str, Tensor], source: str) -> Made:
    """Return a module that holds exactly these tensors, in float32 and in evaluation mode."""
    with torch.device("meta"), _Uninitialised():
        module = make()
    wanted = {name: tuple(p.shape) for name, p in module.state_dict().items()}
    problems = [
        *_listed("missing", wanted.keys() - tensors.keys()),
        *_listed("unexpected", tensors.keys() - wanted.keys()),
        *_listed(
            "mis-shaped",
            (
                f"{name} {tuple(tensors[name].shape)} instead of {shape}"
                for name, shape in wanted.items()
                if name in tensors and tuple(tensors[name].shape) != shape
            ),
        ),
        *_listed(
            "not finite",
            (name for name in wanted if name in tensors and not tensors[name].isfinite().all()),
        ),
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit its config: {'; '.join(problems)}")
    state = {name: tensors[name].to(torch.float32) for name in wanted}
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def _with_sinusoids(config: EncoderConfig, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors, with a sinusoidal position table if the checkpoint does not store it."""
    family = FAMILIES.get(config.model_type)
    name = "embeddings.position.weight"
    if family is None or family.sinusoids is None or name in tensors:
        return tensors
    return {**tensors, name: sinusoid_table(family.sinusoids, config)}


class _Uninitialised(TorchFunctionMode):
    """Context in which modules leave their parameters uninitialised.

    Random initialisation of tensors without storage makes PyTorch import all of its compiler, which
    takes a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        arguments = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return arguments["tensor"]
        return func(*args, **arguments)


def _check_sizes(config: EncoderConfig, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise an error for sizes beyond the tensors' axes, before a module of that size is built.

    Each layer takes time and memory to build, and torch cannot count the elements of any size.
    """
    longest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    problems = [
        f"{name} {size}, where no tensor is longer than {longest}"
        for name, size in _sizes(config).items()
        if size > longest
    ]
    if config.layer_groups > len(tensors):
        layers = config.layer_groups
        problems.append(f"num_hidden_layers {layers}, where there are {len(tensors)} tensors")
    if problems:
        raise CheckpointError(f"{source} does not fit its config: {'; '.join(problems)}")


def _sizes(config: EncoderConfig) -> dict[str, int]:
    """Return sizes of the config that must be an axis of a tensor, or part of one."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "type_vocab_size")
    sizes = {name: getattr(config, name) for name in names}
    family = FAMILIES.get(config.model_type)
    computed = family is not None and family.sinusoids is not None
    if config.embeddings.positions != "none" and not computed:
        sizes["max_position_embeddings"] = config.max_position_embeddings
    if config.attention.position_buckets is not None:
        sizes["relative positions"] = config.attention.position_buckets.count
    if config.embeddings.size is not None:
        sizes["embedding_size"] = config.embeddings.size
    if config.attention.head_size is not None:
        sizes["size of all heads"] = config.num_attention_heads * config.attention.head_size
    return sizes


def load_weights(path: Path, config: EncoderConfig) -> Encoder:
    """Load the encoder of an artifact's weights, which have the encoder's own keys."""
    return build_encoder(config, read_tensors(path), source=str(path))


def tensor_keys(path: Path) -> list[str]:
    """Return the keys of the tensors in a file of weights."""
    if is_pickle(path):
        return list(pickled_state(path))
    with _opened(path) as file:
        return list(file.keys())


def read_tensors(path: Path, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a pickle, by their keys."""
    if is_pickle(path):
        return pickled_tensors(path, wanted)
    with _opened(path) as file:
        keys = file.keys()
        return {key: file.get_tensor(key) for key in keys if wanted(key)}


def folder_tensors(
    folder: Path, wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Tensor]:
    """Return tensors of a folder's weights, in one file or in shards, by their keys."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        tensors |= read_tensors(path, wanted)
    return tensors


def stored_tensors(path: Path) -> dict[str, Tensor]:
    """Copy the tensors of an artifact's safetensors file, and those it names in other files."""
    try:
        return {key: torch.tensor(values) for key, values in mapped_tensors(path).items()}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from None


def _listed(problem: str, names: Iterable[str]) -> list[str]:
    names = sorted(names)
    return [f"{len(names)} {problem}: {shortened(names, 8)}"] if names else []
