"""What sentence-transformers loads: modules in folders, routers of them, static embeddings."""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import BertTokenizerFast, CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, CLIPTokenizer

from tests import models
from tests.kinds.kind import Kind, State

WEIGHTS, PICKLE, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(91))]
WIDTH, WIDE = 32, 256
QUERY, DOCUMENT = "query_0_StaticEmbedding", "document_0_Transformer"
DENSES = ("query_1_Dense", "document_2_Dense")
ASYM_DENSE = ("query_0_Dense", "document_0_Dense")


def _words() -> Any:
    return BertTokenizerFast(vocab={word: n for n, word in enumerate(WORDS)})


def _bert(folder: Path, **options: Any) -> Path:
    """Save a BERT with its tokenizer: what a Transformer module is made of."""
    models.build("bert", torch.float32, layers=3).save_pretrained(folder, **options)
    _words().save_pretrained(folder)
    return folder


def _transformer(folder: Path) -> Any:
    from sentence_transformers.models import Transformer

    transformer = Transformer(str(_bert(folder / "made")))
    shutil.rmtree(folder / "made")
    return transformer


def _save(folder: Path, *modules: Any) -> None:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=list(modules)).save_pretrained(str(folder))


def save(folder: Path) -> None:
    from sentence_transformers.models import Dense, Pooling

    torch.manual_seed(0)
    _save(folder, _transformer(folder), Pooling(WIDTH), Dense(WIDTH, WIDE))


def save_router(folder: Path) -> None:
    """Save a router: a static embedding for queries, a Transformer in shards for documents, and dense modules."""
    from sentence_transformers.models import Dense, Pooling, Router, StaticEmbedding

    torch.manual_seed(0)
    query = [StaticEmbedding(_words(), embedding_dim=WIDE), Dense(WIDE, WIDTH)]
    document = [_transformer(folder), Pooling(WIDTH), Dense(WIDTH, WIDTH)]
    _save(folder, Router.for_query_document(query, document))
    (folder / DOCUMENT / WEIGHTS).unlink()
    models.build("bert", torch.float32, layers=3).save_pretrained(folder / DOCUMENT, max_shard_size="30kB")


def save_asym(folder: Path) -> None:
    """Save a router as releases before 5 did: of another name, and its dense modules pickled."""
    from sentence_transformers.models import Dense, Pooling, Router

    torch.manual_seed(0)
    routes = {"query": [Dense(WIDTH, WIDE)], "document": [Dense(WIDTH, WIDE)]}
    _save(folder, _transformer(folder), Pooling(WIDTH), Router(routes))
    _as_before(folder)


def _as_before(folder: Path) -> None:
    """Change a router to what releases before 5 wrote."""
    modules = json.loads((folder / "modules.json").read_text())
    modules[2] |= {"type": "sentence_transformers.models.Asym", "path": "2_Asym"}
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Router").rename(folder / "2_Asym")
    asym = folder / "2_Asym"
    (asym / "router_config.json").rename(asym / "config.json")
    for place in ASYM_DENSE:
        torch.save(load_file(asym / place / WEIGHTS), asym / place / PICKLE)
        (asym / place / WEIGHTS).unlink()


def save_clip(folder: Path) -> None:
    """Save a CLIP, which has a module of its own."""
    from sentence_transformers.models import CLIPModel as Module

    _save(folder, Module(str(_clip(folder / "made"))))
    shutil.rmtree(folder / "made")


def _clip(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 8, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1}
    vision = {**sizes, "image_size": 16, "patch_size": 4}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).save_pretrained(folder)
    words = ("<|startoftext|>", "<|endoftext|>", "a</w>", "b</w>", "a", "b", "c", "c</w>")
    tokenizer = CLIPTokenizer(vocab={word: n for n, word in enumerate(words)}, merges=[])
    CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16), tokenizer).save_pretrained(folder)
    return folder


def _describe(folder: Path, modules: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = "sentence_transformers.models."
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": names + kind} for n, (path, kind) in enumerate(modules.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {}}))
    (folder / "README.md").write_text("---\nlibrary_name: sentence-transformers\n---\n")


def _write_transformer(folder: Path, **options: Any) -> None:
    _bert(folder, **options)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "feature-extraction"}))


def _write_module(folder: Path, config: Mapping[str, object], weights: State | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file(dict(weights), folder / WEIGHTS)


def _write_dense(folder: Path, inner: int, outer: int) -> None:
    weights = {"linear.weight": torch.randn(outer, inner), "linear.bias": torch.randn(outer)}
    _write_module(folder, {"in_features": inner, "out_features": outer}, weights)


def _write_static(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"embedding.weight": torch.randn(len(WORDS), WIDE)}, folder / WEIGHTS)
    _words().backend_tokenizer.save(str(folder / "tokenizer.json"))


def _write_router(folder: Path, name: str, routes: Mapping[str, list[str]]) -> None:
    places = [place for route in routes.values() for place in route]
    types = {place: f"sentence_transformers.models.{place.rsplit('_', 1)[1]}" for place in places}
    document = {"types": types, "structure": dict(routes), "parameters": {"default_route": "document"}}
    (folder / name).write_text(json.dumps(document))


def write(folder: Path) -> None:
    _describe(folder, {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"})
    _write_transformer(folder)
    _write_module(folder / "1_Pooling", {"embedding_dimension": WIDTH})
    _write_dense(folder / "2_Dense", WIDTH, WIDE)


def write_router(folder: Path) -> None:
    _describe(folder, {"": "Router"})
    routes = {"query": [QUERY, DENSES[0]], "document": [DOCUMENT, "document_1_Pooling", DENSES[1]]}
    _write_router(folder, "router_config.json", routes)
    _write_static(folder / QUERY)
    _write_dense(folder / DENSES[0], WIDE, WIDTH)
    _write_transformer(folder / DOCUMENT, max_shard_size="30kB")
    _write_module(folder / "document_1_Pooling", {"embedding_dimension": WIDTH})
    _write_dense(folder / DENSES[1], WIDTH, WIDTH)


def write_asym(folder: Path) -> None:
    write(folder)
    shutil.rmtree(folder / "2_Dense")
    _describe(folder, {"": "Transformer", "1_Pooling": "Pooling", "2_Router": "Router"})
    for place in ASYM_DENSE:
        _write_dense(folder / "2_Router" / place, WIDTH, WIDE)
    _write_router(folder / "2_Router", "router_config.json", {place.split("_")[0]: [place] for place in ASYM_DENSE})
    _as_before(folder)


def write_clip(folder: Path) -> None:
    _describe(folder, {"": "CLIPModel"})
    _clip(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "any-to-any"}))


def _loaded(folder: Path) -> State:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").state_dict()  # type: ignore[no-any-return]


_SENTENCES = partial(Kind, load=_loaded, library="sentence-transformers", finding="kept-whole")
_ASYM = tuple(f"2_Asym/{place}/{PICKLE}" for place in ASYM_DENSE)

KINDS = {
    "sentence-transformers, Dense": _SENTENCES(save, write=write, whole=(f"2_Dense/{WEIGHTS}",), cut=(INDEX,)),
    "sentence-transformers, Router": _SENTENCES(
        save_router,
        write=write_router,
        whole=tuple(f"{place}/{WEIGHTS}" for place in (QUERY, *DENSES)),
        cut=(f"{DOCUMENT}/{INDEX}",),
    ),
    "sentence-transformers, Asym": _SENTENCES(save_asym, write=write_asym, finding="", whole=_ASYM, cut=(INDEX,)),
    "sentence-transformers, CLIPModel": Kind(
        save_clip, _loaded, "sentence-transformers", write=write_clip, cut=(INDEX,)
    ),
}
