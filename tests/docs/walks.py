"""The walks of docs/how-to: what each page says to change, done in a copy of the repository."""

import re
from dataclasses import dataclass

MARKED = re.compile(r"<!-- walk: (\S+) -->\n(`{3,})(\w+)\n(.*?)\n\2\n", re.DOTALL)


@dataclass(frozen=True)
class Change:
    """One block of a page: a file, and either all of its text or lines to add and to take out, with those around."""

    path: str
    text: str
    is_whole: bool

    def make(self, root):
        path = root / self.path
        if self.is_whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text + "\n")
            return
        lines = self.text.split("\n")
        before = "\n".join(line[1:] for line in lines if line[:1] != "+")
        after = "\n".join(line[1:] for line in lines if line[:1] != "-")
        source = path.read_text()
        if source.count(f"{before}\n") != 1:
            raise AssertionError(f"{self.path} has not, or not once:\n{before}")
        path.write_text(source.replace(f"{before}\n", f"{after}\n" if after else ""))


def changes_of(page):
    return [Change(path, text, language != "diff") for path, _, language, text in MARKED.findall(page)]
