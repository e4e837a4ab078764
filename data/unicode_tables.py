#!/usr/bin/env python3
"""unicode_tables.py - writes unicode_classes.cpp and unicode_fold.cpp from Python's own database.

Run in data/ when a newer Unicode is wanted:  python3 unicode_tables.py
"""
import unicodedata

LAST = 0x110000
HANGUL = range(0xAC00, 0xD7A4)


def ranges(wanted):
    """Runs [first, last] of code points for which wanted(c) holds."""
    runs, start = [], None
    for c in range(LAST + 1):
        inside = c < LAST and wanted(c)
        if inside and start is None:
            start = c
        if not inside and start is not None:
            runs.append((start, c - 1))
            start = None
    return runs


def fold(c):
    """Lower case, canonical decomposition, without non-spacing marks."""
    text = unicodedata.normalize("NFD", chr(c).lower())
    return tuple(ord(x) for x in text if unicodedata.category(x) != "Mn")


def pack(words, separator, width=98):
    """Words in lines of at most this many columns."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(separator) + len(word) > width:
            lines.append("")
        lines[-1] += (separator if lines[-1] else "") + word
    return lines


def write(path, purpose, body):
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"// {path} - {purpose}\n// Written by unicode_tables.py from Unicode "
                  f"{unicodedata.unidata_version}.\n"
                  '#include "tarn/data/unicode_tables.h"\n\nnamespace tarn::data::detail {\n\n'
                  "// clang-format off\n")
        out.write(body + "// clang-format on\n\n}  // namespace tarn::data::detail\n")


def category(c):
    return unicodedata.category(chr(c))


def classes():
    body = ""
    for name, which in (("kLetters", "L"), ("kNumbers", "N"), ("kPunctuation", "P"),
                        ("kControl", ("Cc", "Cf", "Co")), ("kMarks", "Mn")):
        runs = ranges(lambda c, x=which: category(c).startswith(x))
        words = [f"{first:#x},{last:#x}," for first, last in runs]
        body += f"const uint32_t {name}[] = {{\n" + "\n".join(pack(words, " ")) + "\n};\n"
        body += f"const size_t {name}Count = sizeof({name}) / sizeof({name}[0]) / 2;\n\n"
    return body[:-1]


def folds():
    groups = {}  # what comes out -> what goes in
    for c in range(LAST):
        if c in HANGUL or 0xD800 <= c < 0xE000 or category(c) == "Mn":
            continue
        to = "".join(chr(x) for x in fold(c))
        if to != chr(c):
            groups.setdefault(to, []).append(chr(c))
    assert not any(x in "~ " for to, sources in groups.items() for x in to + "".join(sources))
    words = [to + "~" + "".join(sources) for to, sources in groups.items()]
    lines = "\n".join(f'    "{line} "' for line in pack(words, " ", 90))
    lines = lines.replace("?", "\\?")  # no trigraphs
    return f"const char kFolds[] =\n{lines};\n"


write("unicode_classes.cpp", "which code points are letters, numbers, punctuation, control, marks.",
      classes())
write("unicode_fold.cpp", "lower case without accents, code point by code point.", folds())
