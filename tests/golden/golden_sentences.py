# golden_sentences.py - a tiny BERT with its vocabulary: token ids and sentence vectors of varied texts.
"""sentences.safetensors: "model.<name>", the weights of a random BertModel; "mean", "cls" [texts, size]: the
vectors of TEXTS by pooling, of length 1; "raw": the mean without that. Metadata: "config" (as config.json),
"vocab" (tokens by id), "texts", "ids" (cut to the model's length), "lengths" (of the ids before).

The ids are those of the package tokenizers (PyPI; not Debian's), the vectors PyTorch's in float64.
"""
import string

import torch

import golden_io
from golden_transformer import Bert, randomise

SIZES = dict(vocab=0, positions=24, types=2, layers=2, heads=4, size=16, hidden=24)
TEXTS = [
    "Hello, world!", "a", "", "   ", "The cat sat on the mat.", "unaffable UNAFFABLE Un-affable",
    "\u00c9COLE na\u00efve caf\u00e9 \u0130stanbul \u00dcber stra\u00dfe \u1e9e \u0152uvre", "e\u0301 a\u0308 n\u0303 o\u0302\u0323",
    "\u65e5\u672c\u8a9e and \u4e2d\u6587, mixed\u5b57in", "\u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u03b5\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "smile \U0001f642 \U0001fae8 \U0001f469\u200d\U0001f680 flags\U0001f1eb\U0001f1f7", "tab\tthere\u00a0nbsp\u3000wide\u2028line\u200bzero\ufeffbom",
    "bell\x07 vt\x0bff\x0c nel\x85 del\x7f nul\x00 \ufffd", "don't can't... (well) [x] {y} <z> a_b-c/d\\e|f~g`h^i",
    "$5.00 \u20ac6 \u00a37 50% #1 @me a+b=c 3\u00d74 \u00bd \u00b2 \u2167", "\u201cquotes\u201d \u2018single\u2019 \u2014 dash \u2026 \u00bfqu\u00e9? \u00a1s\u00ed!",
    "[MASK] is [CLS] a [SEP] b [UNK] c [PAD] d [mask] [MASK", "a" * 100, "a" * 101, "supercalifragilistic " * 6,
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen",
    "\u01c5 \ufb01 \uff21\uff22 \u212b \u1fa6 \u0345 \U0001d400 \U0002b820x \U0002b920y \u0378z",
]


def vocabulary():
    """Letters alone and inside a word, digits, signs, some words."""
    letters = string.ascii_lowercase + "\u00df\u0153\u03b5\u03bb\u0440\u0443\u0441"
    signs = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u20ac\u00a3\u2014\u201c\u201d\u2018\u2019\u2026\u00bf\u00a1\u00bd"
    words = ["the", "cat", "sat", "on", "un", "##aff", "##able", "hello", "world", "##ld", "na", "##ive", "cafe",
             "\u65e5", "\u672c", "\u8a9e", "\u4e2d", "\u6587", "\u5b57", "\u3053", "##\u3093", "\u1112", "##\u1161", "\U0001f642"]
    tokens = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += list(letters) + ["##" + c for c in letters] + list(string.digits)
    tokens += ["##" + c for c in string.digits] + list(signs) + words
    assert len(set(tokens)) == len(tokens)
    return tokens


def tokenizer_of(tokens):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def write(folder):
    tokens = vocabulary()
    sizes = dict(SIZES, vocab=len(tokens))
    tokenizer = tokenizer_of(tokens)
    full = [tokenizer.encode(text).ids for text in TEXTS]
    tokenizer.enable_truncation(sizes["positions"])
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    torch.manual_seed(4)
    model = Bert(sizes).double()
    randomise(model, 0.3)
    tensors = {"model." + name: p.detach().float() for name, p in model.named_parameters()}
    vectors = {"raw": [], "mean": [], "cls": []}
    with torch.no_grad():
        for row in ids:  # one by one: no padding, no mask
            hidden = model(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))[0]
            vectors["raw"].append(hidden.mean(0))
            vectors["mean"].append(torch.nn.functional.normalize(hidden.mean(0), dim=0))
            vectors["cls"].append(torch.nn.functional.normalize(hidden[0], dim=0))
    tensors.update({name: torch.stack(rows).float() for name, rows in vectors.items()})
    config = dict(model_type="bert", hidden_act="gelu", layer_norm_eps=1e-12, vocab_size=sizes["vocab"],
                  max_position_embeddings=sizes["positions"], type_vocab_size=sizes["types"],
                  num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
                  hidden_size=sizes["size"], intermediate_size=sizes["hidden"])
    golden_io.save(folder / "sentences.safetensors", tensors,
                   {"config": config, "vocab": tokens, "texts": TEXTS, "ids": ids,
                    "lengths": [len(row) for row in full]})
