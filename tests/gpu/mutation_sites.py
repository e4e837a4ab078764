# mutation_sites.py - the places of kernel sources that `mutate` breaks, and the sources with a
# switch at each of them.
import re

HEADER = '#include "tarn/tests/gpu/mutation.h"\n'


class Site:
    """One mutant: text[begin:end] of `path` is broken by what is put before and after it."""

    def __init__(self, path, kind, begin, end, text, before, after):
        self.path, self.kind, self.begin, self.end = path, kind, begin, end
        self.line = text.count("\n", 0, begin) + 1
        self.text = " ".join(text[begin:end].split())
        self.before, self.after = before, after  # with {n} for the mutant's number

    def __str__(self):
        return f"{self.path.name}:{self.line}: {self.kind}: {self.text}"


def without_comments(text):
    """The same length, comments and string literals blanked."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: re.sub(r"[^\n]", " ", m.group()), text,
                  flags=re.S)


def device_ranges(code):
    """The bodies of __global__ and __device__ functions."""
    ranges = []
    for start in re.finditer(r"__(global|device)__", code):
        brace, semicolon = code.find("{", start.end()), code.find(";", start.end())
        if brace < 0 or 0 <= semicolon < brace:
            continue
        depth, end = 0, brace
        while end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            if depth == 0:
                break
            end += 1
        ranges.append((brace, end))
    return ranges


def closing(code, opening):
    depth = 0
    for i in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return -1


def condition_before(code, question):
    """Where the condition of `condition ? a : b` begins."""
    i, depth = question - 1, 0
    while i > 0:
        c = code[i]
        if c in ")]":
            depth += 1
        elif c in "([":
            if depth == 0:
                break
            depth -= 1
        elif depth == 0:
            if c in ",;{}?:" and code[i - 1:i + 1] != "::" and code[i:i + 2] != "::":
                break
            if c == "=" and code[i - 1] not in "=<>!" and code[i + 1] != "=":
                break
            if code[i - 6:i] == "return" and not code[i].isalnum():
                break
        i -= 1
    return i + 1 + len(code[i + 1:question]) - len(code[i + 1:question].lstrip())


COMPARES = re.compile(r"(?<![<-])<(?![<])|(?<![>-])>(?![>])|>=|<=|==|!")


def sites_of(path):
    """All mutants of one file, in the order of its text."""
    text = path.read_text()
    code = without_comments(text)
    inside = device_ranges(code)
    found = []

    def add(kind, begin, end, before, after):
        found.append(Site(path, kind, begin, end, text, before, after))

    def on_device(at):
        return any(begin <= at <= end for begin, end in inside)

    def guard(begin, end, leaves=False):
        statement = re.split(r"[;{}]", code[:begin])[-1]
        if not re.search(r"\bconstexpr\b|\bstatic_assert\b", statement):
            add("guard", begin, end, "(!tarn_mutant({n}) && (" if leaves else "(tarn_mutant({n}) || (", "))")

    for m in re.finditer(r"__syncthreads\(\);", code):
        add("barrier", m.start(), m.end(), "if (!tarn_mutant({n})) ", "")
    for m in re.finditer(r"\batomic(Add|Max|Min|Or|And|Exch|CAS)(\()", code):
        end = closing(code, m.start(2)) + 1
        plain = f"tarn_plain_{m.group(1)}{text[m.start(2):end]}"
        add("atomic", m.start(), end, f"(tarn_mutant({{n}}) ? {plain} : ", ")")
    for m in re.finditer(r"\bif (\()", code):
        end = closing(code, m.start(1))
        condition = code[m.start(1) + 1:end]
        if end < 0 or not on_device(m.start()) or not COMPARES.search(condition):
            continue
        guard(m.start(1) + 1, end, bool(re.match(r"\s*\{?\s*(return|continue|break)\b", code[end + 1:])))
    for m in re.finditer(r"\?", code):
        if not on_device(m.start()):
            continue
        begin = condition_before(code, m.start())
        end = m.start() - (len(code[begin:m.start()]) - len(code[begin:m.start()].rstrip()))
        if COMPARES.search(code[begin:end]):
            guard(begin, end)
    for m in re.finditer(r"\bbool \w+\s*=\s*([^;]*);", code):
        if on_device(m.start()) and COMPARES.search(m.group(1)) and "?" not in m.group(1):
            guard(m.start(1), m.end(1))
    return sorted(found, key=lambda site: site.begin)


def with_switches(path, sites, first):
    """The source of `path` with a switch for each of its sites, numbered from `first` on."""
    text = path.read_text()
    insertions = []  # sites may lie inside each other
    for number, site in enumerate(sites, first):
        insertions.append((site.begin, 1, -site.end, site.before.replace("{n}", str(number))))
        insertions.append((site.end, 0, -site.begin, site.after))
    for at, _, _, insertion in sorted(insertions, reverse=True):
        text = text[:at] + insertion + text[at:]
    return HEADER + "#line 1\n" + text
