"""Where a command writes: results on standard output, progress and complaints on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TextIO

from nodes.cli.dw.views import (
    STATUS_STYLES,
    Block,
    Facts,
    Rows,
    Table,
    View,
    Words,
    as_json,
    cell,
    clean,
    plain,
)


def complain(text: str) -> None:
    """One line on standard error, after the program's name."""
    sys.stderr.write(f"dw: {clean(text)}\n")
    sys.stderr.flush()


class Output(StrEnum):
    """The forms of a result."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class Screen:
    """One command's standard streams. Colours and moving things appear on a terminal only."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str], output: Output) -> None:
        self._out, self._err = out, err
        self._environ = environ
        self.output = output
        self.live = output is Output.TABLE and out.isatty() and environ.get("TERM") != "dumb"

    def show(self, result: dict[str, Any], view: View) -> None:
        """One result in the wanted form."""
        self._out.write(self.text(result, view))
        self._out.flush()

    def text(self, result: dict[str, Any], view: View) -> str:
        """What :meth:`show` writes."""
        match self.output:
            case Output.JSON:
                return as_json(result) + "\n"
            case Output.JSONL:
                parts = result.get(view.key, []) if isinstance(view, Table) else [result]
                return "".join(as_json(part, indent=None) + "\n" for part in parts)
        return self._coloured(view(result)) if self.live else plain(view(result))

    def write(self, text: str) -> None:
        """Text that is the result itself, in every form."""
        self._out.write(text)
        self._out.flush()

    def piece(self, record: dict[str, Any], columns: tuple[str, ...]) -> None:
        """One record of a list that goes on; with JSON each is a line."""
        if self.output is Output.TABLE:
            self._out.write(plain([Rows([record], columns, heading=False)]))
        else:
            self._out.write(as_json(record, indent=None) + "\n")
        self._out.flush()

    def snapshot(self, result: dict[str, Any], view: View) -> None:
        """One state of something that is watched: drawn over the last one on a terminal, else below it."""
        if self.output is not Output.TABLE:
            self._out.write(as_json(result, indent=None) + "\n")
        elif self.live:
            self._out.write("\x1b[H\x1b[2J" + self._coloured(view(result)))
        else:
            self._out.write(plain(view(result)) + "\n")
        self._out.flush()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Shows that something is awaited, on a terminal."""
        if not self._err.isatty():
            yield
            return
        from rich.console import Console

        with Console(file=self._err, no_color=self._no_color).status(cell(text)):
            yield

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Any]:
        """Counts ``total`` things that are done one by one: call what it yields after each."""
        if not self._err.isatty():
            yield lambda: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(file=self._err, no_color=self._no_color), transient=True) as bar:
            task = bar.add_task(cell(text), total=total)
            yield lambda: bar.advance(task)

    @property
    def _no_color(self) -> bool:
        return bool(self._environ.get("NO_COLOR"))

    def _coloured(self, blocks: Iterable[Block]) -> str:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        def styled(value: Any) -> Text:
            text = cell(value)
            return Text(text, style=STATUS_STYLES.get(text, ""))

        console = Console(
            file=self._out, no_color=self._no_color, highlight=False, soft_wrap=True, force_terminal=True
        )
        with console.capture() as captured:
            for number, block in enumerate(blocks):
                if number:
                    console.print()
                match block:
                    case Rows(records, names, _):
                        grid = RichTable(*(name.upper() for name in names), box=None, pad_edge=False)
                        for record in records:
                            grid.add_row(*(styled(record.get(name)) for name in names))
                        console.print(grid)
                    case Facts(record, title):
                        if title:
                            console.print(Text(title, style="bold"))
                        for name, value in record.items():
                            console.print(Text(f"{name}: ", style="dim") + styled(value))
                    case Words(text):
                        console.print(Text(clean(text)))
        return str(captured.get())
