#!/usr/bin/env python3
"""Records what programs ask of an allocator of GPU memory, for bench_trace.

usage: record.py FOLDER [NAME ...]     (without a NAME: all; needs a GPU and PyTorch)

Each workload runs once to warm up and then under PyTorch's own recorder of its caching
allocator, which says what was asked for, on which stream, and when it was given back. Nothing
of the addresses, the tensors or the code is kept. bench/trace.h has the format.
"""

import pathlib
import random
import sys

import torch
import torch.nn.functional as F

MOST_EVENTS = 12_000


def transformer_training():
    """training of a transformer: 6 layers of 512, batches of 16 x 256, AdamW"""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda")
    model = torch.nn.TransformerEncoder(layer, 6)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def run():
        for _ in range(4):
            out = model(torch.randn(16, 256, 512, device="cuda"))
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return run


def growing_inference():
    """inference with growing sequences: 8 layers, a cache that each token makes longer"""
    layers = [torch.nn.Linear(1024, 3 * 1024, device="cuda", dtype=torch.float16)
              for _ in range(8)]

    @torch.no_grad()
    def run():
        for prompt in (37, 180, 512):
            x = torch.randn(4, prompt, 1024, device="cuda", dtype=torch.float16)
            cache = []
            for layer in layers:
                q, k, v = layer(x).view(4, prompt, 3, 16, 64).permute(2, 0, 3, 1, 4)
                cache.append((k.contiguous(), v.contiguous()))
                x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x[:, -1:]
            for _ in range(32):
                for at, layer in enumerate(layers):
                    q, k, v = layer(x).view(4, 1, 3, 16, 64).permute(2, 0, 3, 1, 4)
                    k, v = torch.cat((cache[at][0], k), 2), torch.cat((cache[at][1], v), 2)
                    cache[at] = (k, v)
                    x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 1, 1024)
    return run


def mixture_of_experts():
    """training of a mixture of experts: 8 experts, each step gives them other numbers of tokens"""
    experts = [torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(),
                                   torch.nn.Linear(2048, 512)).cuda() for _ in range(8)]
    gate = torch.nn.Linear(512, 8).cuda()
    parameters = [p for e in experts for p in e.parameters()] + list(gate.parameters())

    def run():
        for step in range(10):
            x = torch.randn(2048 + 512 * (step % 4), 512, device="cuda")
            weight, chosen = gate(x).softmax(1).topk(2)
            out = torch.zeros_like(x)
            for at, expert in enumerate(experts):
                rows, place = (chosen == at).nonzero(as_tuple=True)
                out = out.index_add(0, rows, expert(x[rows]) * weight[rows, place, None])
            out.square().mean().backward()
            for p in parameters:
                p.grad = None
    return run


def data_loader_8_streams():
    """a data loader on 8 streams: pictures of many sizes, decoded, cropped, up to 4 batches each"""
    streams = [torch.cuda.Stream() for _ in range(8)]

    def run():
        random.seed(1)
        ready = {stream: [] for stream in streams}
        for _ in range(60):
            for stream in streams:
                with torch.cuda.stream(stream):
                    pictures = []
                    for _ in range(random.randint(2, 6)):
                        height, width = random.randint(160, 900), random.randint(160, 900)
                        raw = torch.zeros(height, width, 3, dtype=torch.uint8, device="cuda")
                        picture = raw.permute(2, 0, 1).float().div(255)
                        pictures.append(F.interpolate(picture[None], (224, 224)))
                    ready[stream].append(torch.cat(pictures).half())
                    if len(ready[stream]) > random.randint(1, 4):
                        ready[stream].pop(0)
    return run


def serving_32_streams():
    """a serving loop on 32 streams: requests of many lengths, each with a cache of its own"""
    streams = [torch.cuda.Stream() for _ in range(32)]
    weights = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)

    @torch.no_grad()
    def run():
        random.seed(2)
        requests = [None] * len(streams)
        for _ in range(60):
            for at, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    if requests[at] is None:
                        tokens = int(2 ** random.uniform(4, 10))
                        requests[at] = [torch.zeros(tokens, 1024, device="cuda",
                                                    dtype=torch.float16), random.randint(4, 40)]
                    request = requests[at]
                    hidden = request[0] @ weights
                    scores = (hidden[-1:] @ request[0].T).softmax(1)
                    if request[1] % 8 == 0:  # The cache grows by a page.
                        page = torch.zeros(16, 1024, device="cuda", dtype=torch.float16)
                        request[0] = torch.cat((request[0], page))
                    del hidden, scores
                    request[1] -= 1
                    if request[1] == 0:
                        requests[at] = None
    return run


WORKLOADS = [transformer_training, growing_inference, mixture_of_experts, data_loader_8_streams,
             serving_32_streams]


def record(workload):
    """The events of one run, as lines, and how many streams they name."""
    run = workload()
    run()
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
    run()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    lines, streams, live, made = [], {}, {}, 0
    for event in trace:
        if len(lines) == MOST_EVENTS:
            break
        if event["action"] == "alloc" and event["size"] > 0:
            stream = streams.setdefault(event["stream"], len(streams))
            lines.append(f"+ {event['size']} {stream}")
            live[event["addr"]] = made
            made += 1
        elif event["action"] == "free_requested" and event["addr"] in live:
            stream = streams.setdefault(event["stream"], len(streams))
            lines.append(f"- {live.pop(event['addr'])} {stream}")
    return lines, len(streams)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    chosen = [w for w in WORKLOADS if not sys.argv[2:] or w.__name__ in sys.argv[2:]]
    for workload in chosen:
        lines, streams = record(workload)
        path = pathlib.Path(sys.argv[1], f"{workload.__name__}.trace")
        path.write_text("\n".join(
            ["vmmshare-trace 1", workload.__doc__,
             f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}",
             f"{len(lines)} events, {streams} streams", *lines, "end", ""]), encoding="utf-8")
        print(f"{path}: {len(lines)} events, {streams} streams")
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
