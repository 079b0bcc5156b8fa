#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tokens per second of CPU time: `sfsdp tokenize` on one thread, and Hugging Face's `tokenizers` on one, in turns.

  benchmarks/tokenizer.py TOKENIZER.json FILE... [--repeat N]     needs: pip install tokenizers==0.23.3

Both encode the files line by line in batches, and must find as many tokens. What starting takes (reading the tokenizer) is
measured on a short text and subtracted. CPU time, not wall time: other programs may run. Prints the median of N runs, least
and most.
"""
import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

BINARY = pathlib.Path(__file__).resolve().parents[1] / "build/release/sfsdp"


def cpu_of(tokenizer, path, folder):
    """Seconds of CPU that a run of the binary takes, and what it says."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([BINARY, "tokenize", path, "--tokenizer", tokenizer, "--out", folder, "--threads", "1", "--format",
                          "text", "--split-on", "lines"], check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out


def ours(tokenizer, path, empty, work):
    seconds, out = cpu_of(tokenizer, path, os.path.join(work, f"out{time.monotonic_ns()}"))
    start, _ = cpu_of(tokenizer, empty, os.path.join(work, f"out{time.monotonic_ns()}"))
    tokens = int(out.split(": ")[1].split(" ")[0].replace(",", ""))
    return tokens, seconds - start


def theirs(tokenizer, path):
    from tokenizers import Tokenizer
    library = Tokenizer.from_file(tokenizer)
    lines = [line for line in open(path, encoding="utf-8", newline="").read().split("\n") if line.strip(" \t\r")]  # as ours
    begin = time.process_time()
    count = 0
    for i in range(0, len(lines), 1000):
        count += sum(len(e.ids) for e in library.encode_batch_fast(lines[i:i + 1000], add_special_tokens=False))
    return count, time.process_time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        text = "".join(pathlib.Path(f).read_text(errors="replace") for f in arguments.files)
        text = "\n".join(line.rstrip("\r") for line in text.split("\n"))
        path, empty = os.path.join(work, "all.txt"), os.path.join(work, "one.txt")
        pathlib.Path(path).write_text(text)
        pathlib.Path(empty).write_text("a\n")
        rates, counts = {"sfsdp": [], "tokenizers": []}, set()
        for _ in range(arguments.repeat):
            for name, (tokens, seconds) in (("sfsdp", ours(arguments.tokenizer, path, empty, work)),
                                            ("tokenizers", theirs(arguments.tokenizer, path))):
                rates[name].append(tokens / seconds / 1e6)
                counts.add(tokens)
        assert len(counts) == 1, f"not the same number of tokens: {counts}"
        print(f"{len(text) / 1e6:.1f} MB, {tokens:,} tokens, load {os.getloadavg()[0]:.1f}")
        for name, all_rates in rates.items():
            print(f"{name}: {statistics.median(all_rates):.2f} M tokens/s ({min(all_rates):.2f}–{max(all_rates):.2f})")


if __name__ == "__main__":
    main()
