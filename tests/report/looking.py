"""What a matplotlib figure says, and where."""

from __future__ import annotations

from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def written(figure: Figure | None) -> list[str]:
    assert figure is not None
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def boxes(figure: Figure | None) -> list[tuple[str, Bbox]]:
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    beyond = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in undrawn(axis)}
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text not in beyond]
    return [
        (text.get_text(), Text.get_window_extent(text))  # of an annotation, without its line
        for text in texts
        if text.get_visible() and text.get_text().strip()
    ]


def undrawn(axis: Axis) -> list[Text]:
    """The labels of ticks outside the view, which matplotlib keeps but does not draw."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


def legible(figure: Figure) -> None:
    """No two texts overlap and none is cut off."""
    placed = boxes(figure)
    for i, (text, box) in enumerate(placed):
        assert box.x0 >= 0, text
        assert box.x1 <= figure.bbox.width, text
        assert box.y0 >= 0, text
        assert box.y1 <= figure.bbox.height, text
        clashing = [other for other, place in placed[i + 1 :] if box.overlaps(place)]
        assert not clashing, (text, clashing)
