"""The Open Inference Protocol, version 2, over HTTP, with tensors as JSON or as bytes behind it.

The protocol: https://github.com/open-inference/open-inference-protocol. Bytes: Triton's extension
binary_tensor_data, which its clients use unless asked not to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import version as installed
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np
import torch
from fastapi import APIRouter, Request, Response

from dsgd.models.objectives.module_call import Spec
from dsgd.serve.versions import Catalog, RefusedError, Version

_HEADER = "Inference-Header-Content-Length"  # of the JSON that bytes follow
_TYPES: Mapping[str, torch.dtype | None] = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32,
    "INT64": torch.int64, "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32,
    "FP64": torch.float64, "BYTES": None,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_KINDS = {"b": "true or false", "iu": "whole numbers", "iuf": "numbers", "U": "texts"}  # of NumPy's types
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}}},
    }
}


class _Tensor(msgspec.Struct):
    """An input: with data, or with binary_data_size in its parameters."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class _Wanted(msgspec.Struct):
    """An output that is asked for."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    """Inputs for a model."""

    inputs: list[_Tensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Wanted] = []


_decoder = msgspec.json.Decoder(InferRequest)
SCHEMAS = msgspec.json.schema_components([InferRequest], ref_template="#/components/schemas/{name}")[1]


def _of_json(tensor: _Tensor, spec: Spec, at: str) -> Any:
    """Return the tensor, or the list of texts, that lies in a request as JSON."""
    try:
        data = np.asarray(tensor.data)
    except (ValueError, OverflowError):
        raise RefusedError(f"{at}: must be a flat list, or nested ones that fit its shape") from None
    if data.size != math.prod(tensor.shape):
        raise RefusedError(f"{at}: has {data.size} values, which do not fill the shape {tensor.shape}")
    numbers = "iuf" if spec.dtype and spec.dtype.is_floating_point else "iu"
    kinds = "U" if spec.dtype is None else "b" if spec.dtype == torch.bool else numbers
    if data.dtype.kind not in kinds:
        raise RefusedError(f"{at}: must be {_KINDS[kinds]}, for {tensor.datatype}")
    if spec.dtype is None:
        return data.ravel().tolist()
    values = torch.from_numpy(data.reshape(tensor.shape)).to(spec.dtype)
    if kinds == "iu" and not np.array_equal(values.numpy(), data.reshape(tensor.shape)):
        raise RefusedError(f"{at}: has values beyond those of {tensor.datatype}")
    return values


def _of_bytes(raw: bytes, tensor: _Tensor, spec: Spec, at: str) -> Any:
    """Return the tensor, or the list of texts, that lies in a request as bytes."""
    count = math.prod(tensor.shape)
    if spec.dtype is not None:
        if len(raw) != (needed := count * spec.dtype.itemsize):
            raise RefusedError(f"{at}: has {len(raw)} bytes, and the shape {tensor.shape} needs {needed}")
        return torch.frombuffer(bytearray(raw), dtype=spec.dtype).reshape(tensor.shape)
    texts, begin = list[str](), 0
    try:
        while begin < len(raw):  # each text after its length, in 4 bytes
            end = begin + 4 + int.from_bytes(raw[begin : begin + 4], "little")
            texts.append(raw[begin + 4 : end].decode())
            begin = end
    except UnicodeDecodeError:
        raise RefusedError(f"{at}: must be UTF-8") from None
    if begin != len(raw) or len(texts) != count:
        raise RefusedError(f"{at}: must be {count} texts, each after its length in 4 bytes")
    return texts


def read_request(body: bytes, header: str | None, version: Version) -> tuple[InferRequest, dict[str, Any]]:
    """Return a request and its inputs by name; raises RefusedError, in one line with the field and the rule.

    header: how many bytes of the body are JSON; None: all.
    """
    if not (header or "0").isdecimal() or (end := int(header or len(body))) > len(body):
        raise RefusedError(f"{_HEADER}: must be how many bytes of the body are JSON, not {header}")
    try:
        request = _decoder.decode(memoryview(body)[:end])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RefusedError(f"the body: {error}") from None
    form, found = version.form, dict[str, Any]()
    for i, tensor in enumerate(request.inputs):
        at, spec = f"inputs[{i}]", form.inputs.get(tensor.name)
        if spec is None or tensor.name in found:
            raise RefusedError(f"{at}.name: must be one of {', '.join(form.inputs)}, each once")
        if tensor.datatype != _NAMES[spec.dtype]:
            raise RefusedError(f"{at}.datatype: {tensor.name} is {_NAMES[spec.dtype]}, not {tensor.datatype}")
        pairs = [*zip_longest(spec.shape, tensor.shape, fillvalue=0)]
        if not all(given >= 1 and size in (-1, given) for size, given in pairs):
            raise RefusedError(f"{at}.shape: {tensor.name} is {[*spec.shape]}, not {tensor.shape}")
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            found[tensor.name] = _of_json(tensor, spec, f"{at}.data")
            continue
        if not isinstance(size, int) or not 0 <= size <= len(body) - end:
            raise RefusedError(f"{at}.parameters.binary_data_size: must be bytes behind the JSON, not {size}")
        found[tensor.name] = _of_bytes(body[end : end + size], tensor, spec, f"{at}.data")
        end += size
    if missing := form.inputs.keys() - form.optional - found.keys():
        raise RefusedError(f"inputs: {', '.join(sorted(missing))} must be there")
    if form.rows and len({len(x) for x in found.values()}) > 1:
        raise RefusedError("inputs: must all have as many rows")
    if unknown := [one.name for one in request.outputs if one.name not in form.outputs]:
        raise RefusedError(f"outputs: must be among {', '.join(form.outputs)}, not {unknown[0]}")
    return request, found


def _bytes_of(values: Any) -> bytes:
    """Return a tensor, or texts, as bytes."""
    if isinstance(values, list):
        return b"".join(len(raw := text.encode()).to_bytes(4, "little") + raw for text in values)
    return bytes(values.contiguous().view(torch.uint8).numpy().data)


def answer_of(request: InferRequest, outputs: Mapping[str, Any], version: Version) -> Response:
    """Return the answer: JSON, and after it the outputs that are wanted as bytes."""
    described, tail = list[Any](), list[bytes]()
    in_bytes = request.parameters.get("binary_data_output", False)
    for one in request.outputs or [_Wanted(name) for name in outputs]:
        found, spec = outputs[one.name], version.form.outputs[one.name]
        shape = [len(found)] if spec.dtype is None else [*found.shape]
        about: dict[str, Any] = {"name": one.name, "datatype": _NAMES[spec.dtype], "shape": shape}
        if one.parameters.get("binary_data", in_bytes):
            tail.append(_bytes_of(found))
            about["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            about["data"] = found if spec.dtype is None else found.flatten().tolist()
        described.append(about)
    answer = {"model_name": version.model, "model_version": version.name, "outputs": described}
    head = msgspec.json.encode(answer | ({"id": request.id} if request.id else {}))
    headers, kind = ({_HEADER: str(len(head))}, "octet-stream") if tail else ({}, "json")
    return Response(b"".join([head, *tail]), headers=headers, media_type=f"application/{kind}")


def _listed(specs: Mapping[str, Spec]) -> list[dict[str, Any]]:
    return [{"name": n, "datatype": _NAMES[spec.dtype], "shape": [*spec.shape]} for n, spec in specs.items()]


def routes(catalog: Catalog) -> APIRouter:
    """Return the protocol's paths."""
    router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])

    @router.post("/models/{model}/infer", openapi_extra=_BODY)
    @router.post("/models/{model}/versions/{version}/infer", openapi_extra=_BODY)
    async def infer(request: Request, model: str, version: str | None = None) -> Response:
        chosen = request.state.version = catalog.choose(model, version)
        asked, inputs = read_request(await request.body(), request.headers.get(_HEADER), chosen)
        return answer_of(asked, await chosen.answer(inputs), chosen)

    @router.get("")
    async def server_metadata() -> dict[str, Any]:
        return {"name": "dsgd-lab", "version": installed("dsgd-lab"), "extensions": ["binary_tensor_data"]}

    @router.get("/health/live")
    @router.get("/health/ready")
    async def health() -> dict[str, bool]:
        return {"ready": True}

    @router.get("/models/{model}")
    @router.get("/models/{model}/versions/{version}")
    async def model_metadata(model: str, version: str | None = None) -> dict[str, Any]:
        form = catalog.choose(model, version).form
        about = {"name": model, "versions": [*catalog.models[model]], "platform": "pytorch"}
        return about | {"inputs": _listed(form.inputs), "outputs": _listed(form.outputs)}

    @router.get("/models/{model}/ready")
    @router.get("/models/{model}/versions/{version}/ready")
    async def model_ready(model: str, version: str | None = None) -> dict[str, Any]:
        return {"name": catalog.choose(model, version).model, "ready": True}

    return router
