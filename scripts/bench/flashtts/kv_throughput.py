"""How much KV does each phase need to be fast, and how is it split? (the paper's Figs. 6 and 10)

    python -m scripts.bench.flashtts.kv_throughput

Nothing runs: the figures come from the cost model of the simulated 4090 and `scheduling.kv.split`.

Fig. 6: tokens per second of one model's prefill (paths of 512 tokens at once) and decode (after 512
tokens) against the KV that its batch needs, as a share of the largest; and how much KV reaches
80 %. Fig. 10: the batches and bytes that the split chooses for a level of 256 paths, by memory. The
last line is JSON.
"""

from bisect import bisect_left

from flashedge.errors import ConfigError
from flashedge.models.shape import ModelShape
from flashedge.plots import draw_plot
from flashedge.scheduling.costs import Device, RooflineCurve
from flashedge.scheduling.kv.split import KvMemory, KvSplit
from flashedge.scheduling.kv.stages import EngineCost, Workload
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    PAIRS,
    build_cell,
    format_table,
    locate_picture,
    save_json,
    save_tables,
)
from scripts.lab.benchmark.devices import find_card

NAME = "kv_throughput"
CONTEXT = 512
BATCHES = tuple(range(1, 513))
LEVEL = Workload(paths=256, context_tokens=400, live_tokens=100 + 300 * 64, step_tokens=52)
BYTES = (0.5e9, 1e9, 1.5e9, 2e9, 3e9, 4e9, 6e9, 8e9, 14e9)
SHARE = 0.8


def compute_rates(device: Device, shape: ModelShape) -> dict[str, list[tuple[float, float]]]:
    """Return phase -> (GB of KV, share of the largest throughput) by batch."""
    curve = RooflineCurve(device=device, shape=shape)
    prefill, decode = curve.prefill_at(0, CONTEXT), curve.decode_at(CONTEXT)
    found = {
        "prefill": [b * CONTEXT / prefill(b) for b in BATCHES],
        "decode": [b / decode(b) for b in BATCHES],
    }
    path_gb = CONTEXT * shape.kv_bytes_per_token / 1e9
    return {
        phase: [(b * path_gb, rate / max(per_s)) for b, rate in zip(BATCHES, per_s, strict=True)]
        for phase, per_s in found.items()
    }


def find_reaching(line: list[tuple[float, float]]) -> float:
    """GB at which the throughput reaches SHARE."""
    return line[bisect_left([share for _, share in line], SHARE)][0]


def choose_pair_split(pair: str, kv_bytes: float) -> KvSplit | None:
    setup = build_cell(pair, "aime", 256).setup
    costs = [
        EngineCost(
            curve=RooflineCurve(device=setup.device, shape=shape),
            kv_bytes_per_token=shape.kv_bytes_per_token,
            block_tokens=16,
            max_batch=256,
        )
        for shape in (setup.generator, setup.verifier)
    ]
    try:
        memory = KvMemory(
            generator=costs[0],
            verifier=costs[1],
            kv_bytes=int(kv_bytes),
            link=find_card("rtx4090")[1].link,
        )
        return memory.choose_split(LEVEL)
    except ConfigError:
        return None


def main() -> None:
    setup = build_cell("7B+1.5B", "aime", 8).setup
    needs: dict[str, dict[str, float]] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for shape in (setup.verifier, setup.generator):
        lines = compute_rates(setup.device, shape)
        needs[shape.name] = {phase: find_reaching(line) for phase, line in lines.items()}
        series |= {f"{shape.name[:12]}, {phase}": line for phase, line in lines.items()}
    draw_plot(
        locate_picture(f"{NAME}-phases"),
        series,
        title="Simulated 4090: throughput against KV",
        x="KV, GB",
        y="share of the largest",
    )
    first = format_table(
        ("model", "prefill, GB", "decode, GB", "ratio"),
        [
            (name, f"{n['prefill']:.2f}", f"{n['decode']:.2f}", f"{n['decode'] / n['prefill']:.0f}")
            for name, n in needs.items()
        ],
        f"KV with which {SHARE:.0%} of the largest throughput is reached (Fig. 6)",
    )
    rows = []
    best: dict[str, list[tuple[float, float]]] = {pair: [] for pair in PAIRS}
    for pair in PAIRS:
        splits = [(b, s) for b in BYTES if (s := choose_pair_split(pair, b)) is not None]
        fastest = min(split.seconds for _, split in splits)
        for kv_bytes, split in splits:
            best[pair].append((kv_bytes / 1e9, fastest / split.seconds))
            rows.append(
                (
                    pair,
                    f"{kv_bytes / 1e9:g}",
                    split.prefill_batch,
                    split.decode_batch,
                    f"{split.verifier_bytes / 1e9:.2f}",
                    f"{split.generator_bytes / 1e9:.2f}",
                    "yes" if split.offload else "",
                    f"{fastest / split.seconds:.2f}",
                )
            )
    draw_plot(
        locate_picture(f"{NAME}-split"),
        best,
        title="Simulated 4090: a level of 256 paths under the best split",
        x="KV of both engines, GB",
        y="throughput, share of the largest",
        points=True,
    )
    head = ("pair", "KV, GB", "B_pre", "B_dec", "verifier, GB", "generator, GB", "offload", "rate")
    second = format_table(head, rows, "The split of a level of 256 paths (Fig. 10)")
    save_tables(NAME, "KV and throughput", [first, second])
    save_json(NAME, {"simulated": True, "gb_for_80_percent": needs, "split": rows})
    print(f"{first}\n\n{second}")
    report(simulated=True, gb_for_80_percent=needs)


if __name__ == "__main__":
    main()
