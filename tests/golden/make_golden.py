#!/usr/bin/python3
# make_golden.py - regenerates the golden files of this folder with PyTorch.
"""make_golden.py [--out DIR] [--only ops,layers,optim,recurrent,resnet,transformer,sentences] [--opinfo PREFIX]

Needs torch, torchvision and numpy (python3-torch, python3-torchvision); the tests need only the files.
The files were written with PyTorch 1.13; a run with the same version writes the same bytes, what is in
bfloat16 and the last bits of float64 on a processor of the same kind.
"sentences" is not among those made without --only: it needs the package tokenizers (PyPI) too.
--opinfo PREFIX compares the operator cases with an independent dump in PREFIXf64 and PREFIXf32.
"""
import argparse
import sys
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--only", default="ops,layers,optim,recurrent,resnet,transformer")
    parser.add_argument("--opinfo", metavar="PREFIX")
    args = parser.parse_args()
    try:
        import golden_layers
        import golden_ops
        import golden_optim
        import golden_recurrent
        import golden_resnet
        import golden_transformer
    except ImportError as error:
        sys.exit(f"make_golden: {sys.executable} lacks a module ({error}); it needs torch, torchvision, numpy")

    def sentences():
        import golden_sentences
        golden_sentences.write(args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    writers = {"ops": lambda: golden_ops.write(args.out, args.opinfo),
               "layers": lambda: golden_layers.write(args.out),
               "optim": lambda: golden_optim.write(args.out),
               "recurrent": lambda: golden_recurrent.write(args.out),
               "resnet": lambda: golden_resnet.write(args.out),
               "transformer": lambda: golden_transformer.write(args.out),
               "sentences": sentences}
    for name in args.only.split(","):
        if name not in writers:
            sys.exit(f"make_golden: --only takes {', '.join(writers)}; got '{name}'")
        writers[name]()


if __name__ == "__main__":
    main()
