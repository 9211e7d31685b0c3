import re
from pathlib import Path

import matplotlib.image
import matplotlib.style
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from fat2thin.report import distribution_figures as figures
from fat2thin.report import style

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def drawn():
    """Return every figure of the gallery, drawn once with fewer samples."""
    with matplotlib.style.context(style.STYLE):
        return {
            "family": figures.family(),
            "fat_and_thin": figures.fat_and_thin(),
            "published_sampler": figures.published_sampler(sample_count=20_000),
        }


def test_the_gallery_is_complete(drawn):
    assert drawn.keys() == figures.GALLERY.keys()


def test_figures_are_written_and_not_blank(drawn, tmp_path):
    for name, figure in drawn.items():
        path = tmp_path / f"{name}.png"
        style.save_figure(figure, path)
        pixels = matplotlib.image.imread(path)
        width, height = figure.get_size_inches() * figure.dpi
        assert pixels.shape[:2] == pytest.approx((height, width), abs=1)
        assert pixels[..., :3].std() > 0.05
        # Nothing is cut off: the outermost pixels are background.
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert np.all(border[:, :3] == 1.0), name
    assert {path.suffix for path in tmp_path.iterdir()} == {".png"}


def test_the_same_figure_gives_the_same_bytes(drawn, tmp_path):
    for kind in ("png", "pdf"):
        first, second = tmp_path / f"first.{kind}", tmp_path / f"second.{kind}"
        style.save_figure(drawn["fat_and_thin"], first)
        style.save_figure(drawn["fat_and_thin"], second)
        assert first.read_bytes() == second.read_bytes()


def test_a_failed_write_leaves_nothing_behind(drawn, tmp_path):
    (tmp_path / "kept.png").write_bytes(b"old picture")
    (tmp_path / "blocked.png").mkdir()
    with pytest.raises(OSError, match=r"blocked\.png"):
        style.save_figure(drawn["family"], tmp_path / "blocked.png")
    with pytest.raises(ValueError, match="not supported"):
        style.save_figure(drawn["family"], tmp_path / "kept.bmp3")
    assert {path.name for path in tmp_path.iterdir()} == {"kept.png", "blocked.png"}
    assert (tmp_path / "kept.png").read_bytes() == b"old picture"


def test_family_marks_the_closed_form_half_widths(drawn):
    labels = [axes.get_xlabel() for axes in drawn["family"].axes]
    expected = [f"zero beyond\n±{np.sqrt(2 / (1 - q)):.2f}" for q in (-10, -1, 0, 0.5)]
    assert labels == expected + ["zero\nnowhere"] * 4


def test_family_draws_the_distributions_it_names(drawn):
    twins = {
        "semicircle": scipy.stats.semicircular(),
        "Gaussian": scipy.stats.norm(),
        "Student-t, ν = 3": scipy.stats.t(3, scale=np.sqrt(2 / 1.5)),
        "Cauchy": scipy.stats.cauchy(scale=np.sqrt(2)),
        "Student-t, ν = ⅓": scipy.stats.t(1 / 3, scale=2.0),
    }
    curves = {
        axes.get_title().split("\n")[1]: axes.lines[0].get_data() for axes in drawn["family"].axes
    }
    for name, twin in twins.items():
        points, density = curves[name]
        np.testing.assert_allclose(density, twin.pdf(points), rtol=1e-4, atol=1e-3)


def test_the_ratio_of_fat_and_thin_minimises_the_divergence():
    def divergence(k):
        return -np.log(k) + np.log1p(k**2) + 3 * np.arctan(k) / k - 1 / k**2 + np.arctan(k) / k**3

    best = scipy.optimize.minimize_scalar(divergence, bounds=(1, 10), options={"xatol": 1e-9})
    assert pytest.approx(best.x, abs=1e-4) == figures.BEST_RATIO


def test_a_method_has_one_look_in_every_figure():
    """Unless a method before it in the same figure has that look."""
    for name in ("fttpo", "iql", "tawac"):
        alone = style.method_looks([name])[name]
        together = style.method_looks(["mine", "sql-published", name, "yours"])
        assert together[name] == alone
        assert style.method_looks([f"{name}-published"])[f"{name}-published"] == alone
    many = [*style._PREFERRED][: len(style.LOOKS)]
    for names in (many, ["fttpo", "fttpo-published", "sql", "tawac-ht"], list("abcdefghi")):
        looks = style.method_looks(names)
        assert [*looks] == names
        assert len({look["color"] for look in looks.values()}) == len(names)
        assert len({look["marker"] for look in looks.values()}) == len(names)


def test_the_gallery_page_shows_every_picture_with_a_command():
    page = (DOCS / "gallery.md").read_text()
    shown = re.findall(r"^!\[.+\]\((images/.+\.png)\)$", page, re.MULTILINE)
    stored = [str(path.relative_to(DOCS)) for path in (DOCS / "images").rglob("*.png")]
    assert sorted(shown) == sorted(stored)
    # A command follows before the next chapter; two pictures of one command may share it.
    for section in re.split(r"^## ", page, flags=re.MULTILINE):
        last = section.rfind("![")
        assert last < 0 or "```" in section[last:], section.splitlines()[0]


def test_pictures_have_an_opaque_light_background():
    for path in (DOCS / "images").rglob("*.png"):
        pixels = matplotlib.image.imread(path)
        corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1]]
        assert np.all(corners == 1.0), path.name
        assert pixels.shape[2] == 3 or np.all(pixels[..., 3] == 1.0), path.name
