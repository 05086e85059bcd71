"""Protocol, study and paper files: shipped files are complete, and errors in a user's file are reported clearly."""

import csv
import dataclasses
import math
import re
from pathlib import Path

import pytest

from spml.bench import quickstart
from spml.bench.dry_run import dry_run
from spml.bench.paper import paper_values
from spml.bench.plan import parse_seeds, plan
from spml.bench.protocols import load_protocol, make_protocol
from spml.bench.studies import load_study
from spml.bench.toml_files import packaged_files
from spml.data.describe import PAPERS
from spml.errors import InputError
from spml.labels import Labels
from spml.losses import RobustSchedule
from spml.methods import METHODS, Problem, method

REFERENCE_ONLY: set[str] = set()  # methods a paper compares with that are not built here; so far all are
MEASURES = {"test_map", "recovery_map", "pseudo_label_precision", "k_low", "k_high"}


def study_sides(name):
    text = packaged_files("studies")[name].read_text(encoding="utf-8")
    return [side for side in ("images", "features") if f"[{side}]" in text]


@pytest.mark.parametrize("name", packaged_files("protocols"))
def test_every_protocol_is_valid(name):
    protocol = load_protocol(name)
    searches = protocol.searches(list(protocol.data), protocol.entries(), "grid")
    assert len(searches) == len(protocol.data) * len(protocol.methods)
    for search in searches:
        for experiment in search.points():  # every point of every grid is valid
            METHODS[experiment.method](**experiment.settings)
    if protocol.paper:
        found = paper_values(protocol.paper)
        assert found
        compared = {method for _, method, _ in found} - {"en-cl", "en-scl"}  # LAC's Table 2 has these on ResNet-50 only
        assert compared <= set(protocol.methods)


@pytest.mark.parametrize(("name", "side"), [(n, side) for n in packaged_files("studies") for side in study_sides(n)])
def test_every_study_is_valid(name, side):
    study = load_study(name, features=side == "features")
    data = next(iter(study.protocol.data))
    searches = study.searches([data], study.run, study.protocol.search)
    assert len(searches) >= len(study.run)
    assert study.where
    for search in searches:
        METHODS[search.base.method](**search.base.settings)
    if study.protocol.paper:
        values = paper_values(study.protocol.paper, study.y[0])
        assert {method for _, method, _ in values} >= {search.base.entry for search in searches}


def test_scenes_protocol_uses_the_settings_of_the_quickstart():
    experiment = load_protocol("scenes").search_of("auto", "scenes", "none").base
    assert experiment.train == quickstart.SETTINGS
    assert experiment.backbone == "small"


def test_settings_in_every_file_cite_their_source():
    for path in packaged_files("protocols").values():
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# "), path.name
        assert text.count("#") > 10, path.name


@pytest.mark.parametrize("name", packaged_files("papers"))
def test_papers_tables(name):
    with packaged_files("papers")[name].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    named = {entry for protocol in packaged_files("protocols") for entry in load_protocol(protocol).methods}
    for study in packaged_files("studies"):
        for side in study_sides(study):
            named |= set(load_study(study, features=side == "features").protocol.methods)
    seen = set()
    for row in rows:
        assert row["dataset"] in ("voc12", "coco", "nus", "cub")
        assert row["measure"] in MEASURES
        assert 0 < float(row["value"]) < 100
        assert not row["sd"] or 0 < float(row["sd"]) < 10
        assert (row["method"] in {*METHODS, *named, *REFERENCE_ONLY}) or row["measure"].startswith("k_")
        key = tuple(row[column] for column in ("table", "setting", "method", "dataset", "measure"))
        assert key not in seen, key
        seen.add(key)


def test_some_numbers_of_the_papers():
    def value(file, table, setting, method, data, measure="test_map"):
        paper = dataclasses.replace(load_protocol("lasd").paper, file=file, table=table, setting=setting)
        found = paper_values(paper, measure)[setting, method, data]
        return found.value, found.sd

    assert value("cole2021", "1", "linear", "role", "voc12") == (86.5, None)
    assert value("cole2021", "1", "finetune", "role-linear-init", "coco") == (69.0, None)
    assert value("cole2021", "2", "linear", "role", "nus", "recovery_map") == (56.0, None)
    assert value("zhou2022", "1", "resnet50", "em-apl", "cub") == (21.84, 0.34)
    assert value("zhou2022", "2 left", "resnet101", "role", "voc12") == (88.37, 0.07)
    assert value("lasd", "2", "resnet50", "lasd", "nus") == (50.52, 0.03)
    assert value("xie2022", "2", "label-wise", "lac", "coco") == (75.6, None)


def test_protocols_have_the_published_settings_of_each_data_set():
    """Values that one table or file of the authors gives and another protocol's default would hide."""

    def base(protocol, entry, data):
        return load_protocol(protocol).search_of(entry, data, "published").base

    for data, k, lasd_k, leverage in [("voc12", 1.5, 1.46, 0.05642), ("cub", 31.4, 31.4, 0.00411)]:
        assert base("zhou2022", "role", data).k == base("lasd", "epr", data).k == k  # Cole et al.'s
        names = [str(name) for name in range({"voc12": 20, "cub": 312}[data])]
        problem = Problem(Labels.from_indices([0], names), k=k)
        lasd = method("lasd", **base("lasd", "lasd", data).settings)
        lasd.prepare(problem)
        assert lasd.k == lasd_k
        assert round(lasd.negative_leverage, 5) == leverage
    # LinearInit: the linear phase is fixed, fine-tuning is searched
    linear = {("an-ls", "voc12"): (1e-4, 8), ("an-ls", "nus"): (1e-4, 16)}
    linear |= {("role", "voc12"): (1e-3, 16), ("role", "cub"): (1e-3, 8)}
    for (entry, data), phase in linear.items():
        search = load_protocol("cole2021-finetune").search_of(f"{entry}-linear-init", data, "published")
        first = search.base.linear_init
        assert (first.learning_rate, first.batch_size, first.epochs, search.base.train.epochs) == (*phase, 25, 5)
        assert set(search.space) == {"train.learning_rate", "train.batch_size"}
    assert base("lac2022", "plc", "voc12").train.early_stopping == 9
    assert base("lac2022", "lac", "voc12").train.early_stopping is None  # it must reach its second stage
    schedule = method("gr", **base("features", "gr", "cub").settings).settings.schedule
    assert schedule.slope == (0.0, 10.0)
    assert schedule.offset == (-2.0, -8.0)
    assert schedule.width == RobustSchedule().width
    assert base("features", "gr", "voc12").settings == {}


def test_documentation_lists_every_protocol_and_study():
    text = (Path(__file__).resolve().parents[2] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    for name in (*packaged_files("protocols"), *packaged_files("studies")):
        assert f"| `{name}` |" in text


def test_examples_of_the_documentation_load(tmp_path: Path):
    text = (Path(__file__).resolve().parents[2] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    protocol, study = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "protocol.toml").write_text(protocol)
    (tmp_path / "study.toml").write_text(study)
    assert load_protocol(str(tmp_path / "protocol.toml")).search_of("em-twice", "photos", "grid").base.method == "em"
    assert len(load_study(str(tmp_path / "study.toml"), features=True).searches(["voc12"], ["an-ls"], "none")) == 4


def small(**changes):
    return {"title": "t", "kind": "linear", "data": {"d": {"k": 1.5}}, "methods": {"an": {}}, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "t"}, "unknown key 'titel'"),
        ({"kind": "deep"}, "kind must be one of linear, finetune, not 'deep'"),
        ({"search": "random"}, "search must be one of"),
        ({"data": {"d": {"kk": 1}}}, "data.d: unknown key 'kk'"),
        ({"methods": {"anx": {}}}, "[Nn]o method named 'anx'"),
        ({"methods": {"an": {"setting": {}}}}, "methods.an: unknown key 'setting'"),
        ({"methods": {"em": {"settings": {"alpha": 1}}}}, "has no setting 'alpha'"),
        ({"methods": {"em": {"grid": {"settings": {"alpha": [1]}}}}}, "method 'em' has no setting 'alpha'"),
        ({"methods": {"em": {"on": {"voc": {}}}}}, "no data set 'voc'"),
        ({"methods": {"em": {"draw": {"by": "taste"}}}}, "uniform, class or size, not 'taste'"),
        ({"methods": {"em": {"draw": {"bias": 1}}}}, "draw: unknown key 'bias'"),
        ({"train": {"epoch": 2}}, "train: unknown key 'epoch'"),
        ({"train": {"schedule": "cosine"}}, "train: unknown key 'schedule'"),  # a linear head has none
        ({"kind": "finetune", "train": {"schedule": "step"}}, "schedule must be one of"),
        ({"grid": {"train": {"learning_rate": 0.1}}}, "train.learning_rate must be a list"),
        ({"grid": {"rate": [0.1]}}, "'rate' must start with settings"),
        ({"paper": {"file": "nobody"}}, "paper.file must be one of"),
        ({"title": 5}, "own: title must be a string, not 5"),
        ({"image_size": "large"}, "own: image_size must be a whole number, not 'large'"),
        ({"image_size": 0}, "own: image_size must be at least 1, not 0"),
        ({"seeds": 3}, "own: seeds must be a list of whole numbers, not 3"),
        ({"seeds": []}, "own: seeds must be a list of whole numbers, not \\[\\]"),
        ({"seeds": [-1]}, "own: seeds must be whole numbers from 0"),
        ({"data": ["d"]}, "own: data must be a table, not"),
        ({"data": {"d": 5}}, "own: data.d must be a table"),
        ({"data": {"d": {"k": "two"}}}, "own: data.d: k must be a number or \"none\", not 'two'"),
        ({"paper": "cole2021"}, "own: paper must be a table"),
        ({"paper": {"file": ["cole2021"]}}, "own: paper: file must be a string"),
        ({"train": 5}, "own: train must be a table, not 5"),
        (
            {"train": {"seed": 3}},
            r"own: train.seed cannot be set here: use seeds = \[0, 1, 2\]",
        ),
        (
            {"kind": "finetune", "train": {"views": {"crop_scale": 0.5}}},
            "train.views: crop_scale must be a list of two",
        ),
        ({"kind": "finetune", "train": {"views": {"flip": 2}}}, "own: train: flip must be between 0 and 1, not 2"),
        ({"draw": {"rows": "half"}}, "own: draw: rows must be a number, not 'half'"),
        ({"draw": {"rows": 2}}, "own: draw.rows must be a share"),
        ({"draw": {"positives": -1}}, "own: draw.positives must be at least 1 label per row, not -1"),
        ({"draw": {"seed": -1}}, "own: draw.seed must be a whole number from 0"),
        ({"draw": {"drop": 1.0}}, "own: draw.drop must be a share of at least 0 and below 1, not 1.0"),
        ({"draw": {"strength": 2.0}}, "own: draw.strength has no effect on a uniform draw"),
        ({"methods": {"an": {"draw": {"seed": -1}}}}, "own: methods.an: draw.seed must be a whole number"),
        ({"data": {"d": {"k": -1.5}}}, "own: data.d: k must be a number above 0, not -1.5"),
        ({"data": {"d": {"k": math.nan}}}, "own: data.d: k must be a number above 0, not nan"),
        ({"grid": {"train": {"learning_rate": [math.inf]}}}, "own: grid: .*learning_rate must be finite and above 0"),
        ({"grid": [1]}, "own: grid must be a table"),
        (
            {"grid": {"train": {"learning_rate": ["high"]}}},
            "own: grid: train: learning_rate must be a number, not 'high'",
        ),
        ({"grid": {"train": {"seed": [0, 1]}}}, "own: grid: train.seed cannot be set here"),
        ({"grid": {"train": {"learning_rate": [0.1, 0.01, 0.1]}}}, "own: grid: train.learning_rate has 0.1 twice"),
        (
            {"grid": {"train": {"schedule": ["cosine"]}}},
            "'train.schedule' is not one of train.epochs, .* of a linear head",
        ),
        ({"kind": "finetune", "grid": {"train": {"views": [{"flip": 0.1}]}}}, "'train.views' is not one of"),
        ({"methods": ["an"]}, "own: methods must be a table"),
        ({"methods": {"an": 5}}, "own: methods.an must be a table"),
        ({"methods": {"an": {"method": ["an"]}}}, "own: methods.an: method must be a string"),
        ({"methods": {"em": {"settings": 5}}}, "own: methods.em: settings must be a table"),
        ({"methods": {"em": {"settings": {"entropy_weight": "big"}}}}, "settings.entropy_weight must be a number"),
        (
            {"methods": {"em": {"grid": {"settings": {"entropy_weight": ["big"]}}}}},
            "settings.entropy_weight must be a num",
        ),
        ({"methods": {"em": {"on": ["d"]}}}, "own: methods.em: on must be a table"),
        ({"methods": {"em": {"linear_init": 25}}}, "own: methods.em: linear_init must be a table"),
        (
            {"methods": {"em": {"linear_init": {"learning_rate": [0.1]}}}},
            "learning_rate must be a number, not",
        ),
        ({"methods": {"em": {"linear_init": {"epochs": 0}}}}, "methods.em: linear_init: epochs must be between 1 and"),
    ],
)
def test_errors_in_a_protocol(changes, message):
    with pytest.raises(InputError, match=message):
        make_protocol("own", small(**changes))


def test_none_in_every_table():
    table = small(
        kind="finetune",
        head="label-wise",
        train={"averaging": 0.9, "views": {"crop_scale": "none"}},
        grid={"train": {"clip": ["none", 1.0]}},
        draw={"drop": 0.5},
        methods={"an": {"head": "none", "train": {"averaging": "none"}, "draw": {"drop": "none"}}},
    )
    search = make_protocol("own", table).search_of("an", "d", "grid")
    assert (search.base.head, search.base.train.averaging, search.base.draw.drop) == (None, None, None)
    assert [experiment.train.clip for experiment in search.points()] == [None, 1.0]


@pytest.mark.parametrize(
    "given",
    [{"head": "label-wise"}, {"head_settings": {"dropout": 0.1}}, {"linear_init": {"epochs": 2}}],
)
def test_error_for_a_head_on_features_that_is_not_linear(given):
    protocol = make_protocol("own", small(methods={"an": given, "em": {"head": "linear"}}))
    assert protocol.search_of("em", "d", "none").base.features
    with pytest.raises(InputError, match="own: an: on features every head is linear"):
        protocol.search_of("an", "d", "none")
    with pytest.raises(InputError, match=r"grid: settings\.entropy_weight must be a number"):
        make_protocol("own", small(grid={"settings": {"entropy_weight": ["big"]}})).search_of("em", "d", "grid")


def test_missing_files_methods_and_data():
    with pytest.raises(InputError, match="No file 'nothing'"):
        load_protocol("nothing")
    protocol = make_protocol("own", small())
    with pytest.raises(InputError, match="no data set 'coco'; it has d"):
        protocol.check_data(["coco"])
    with pytest.raises(InputError, match="No method named 'anx'"):
        protocol.entries(["anx"])
    assert protocol.entries(["em"]) == ["em"]  # a method that the file does not list


def test_own_protocol_by_its_path(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text('title = "mine"\nkind = "linear"\n[data.d]\n[methods.an]\n')
    assert load_protocol(str(path), ["train.epochs=3", "title=other"]).train == {"epochs": 3}
    path.write_text("title = \n")
    with pytest.raises(InputError, match=r"mine\.toml: this is not a valid TOML file"):
        load_protocol(str(path))
    with pytest.raises(InputError, match="not of the form key=value"):
        load_protocol("lasd", ["epochs"])


def test_published_values_are_searched_only_by_grid():
    em = {
        "grid": {"settings": {"entropy_weight": [0.1, 0.2]}},
        "on": {"d": {"settings": {"entropy_weight": 0.3}}},
    }
    table = small(grid={"train": {"learning_rate": [0.1, 0.01]}}, methods={"em": em})
    protocol = make_protocol("own", table)
    assert protocol.search_of("em", "d", "published").space == {"train.learning_rate": (0.1, 0.01)}
    assert protocol.search_of("em", "d", "none").space == {}
    assert len(protocol.search_of("em", "d", "grid").points()) == 4
    assert protocol.search_of("em", "d", "none").base.settings == {"entropy_weight": 0.3}
    assert protocol.search_of("em", "d", "none").base.k == 1.5


def test_linear_init_has_a_fixed_linear_phase_and_searches_fine_tuning():
    """Cole et al.'s code: AN-LS 1e-4 and 8 (NUS 16), ROLE 1e-3 and 16 (CUB 8); then the grid of everybody."""
    protocol = load_protocol("cole2021-finetune")
    grid = {"train.learning_rate": (1e-2, 1e-3, 1e-4, 1e-5), "train.batch_size": (8, 16)}
    phases = {}
    for entry in ("an-ls-linear-init", "role-linear-init"):
        for data in protocol.data:
            search = protocol.search_of(entry, data, "published")
            assert search.space == grid
            assert search.base.train.epochs == 5
            phase = search.base.linear_init
            assert phase is not None
            assert {point.linear_init for point in search.points()} == {phase}
            phases[entry.removesuffix("-linear-init"), data] = (phase.epochs, phase.learning_rate, phase.batch_size)
    assert phases == {
        **{("an-ls", data): (25, 1e-4, 16 if data == "nus" else 8) for data in protocol.data},
        **{("role", data): (25, 1e-3, 8 if data == "cub" else 16) for data in protocol.data},
    }
    longer = load_protocol("cole2021-finetune", ["methods.role-linear-init.train.epochs=10"])
    assert longer.search_of("role-linear-init", "voc12", "published").base.train.epochs == 10


def test_zhou_on_cub_matches_table_5():
    experiment = load_protocol("zhou2022").search_of("em-apl", "cub", "published").base
    assert (experiment.train.batch_size, experiment.train.learning_rate, experiment.train.early_stopping) == (
        8,
        1e-4,
        1,
    )
    assert (
        experiment.settings["entropy_weight"],
        experiment.settings["soft_weight"],
        experiment.settings["warm_up"],
    ) == (
        0.01,
        0.4,
        3,
    )


def test_studies_vary_one_thing_at_a_time():
    study = load_study("lasd-parameters", features=True)
    searches = study.searches(["voc12"], study.run, "none")
    leverages = [c.base.settings["positive_leverage"] for c in searches if c.varied == "settings.positive_leverage"]
    assert leverages == [0.01, 0.05, 0.1, 0.2, 0.5, 1.0]
    assert {c.base.settings["positive_leverage"] for c in searches if c.varied == "settings.threshold"} == {0.1}
    budget = load_study("label-budget", features=True).searches(["voc12"], ["an"], "none")
    assert [search.base.draw.rows for search in budget] == [m / 10 for m in range(1, 11)]
    by_data = load_study("misspecified-k", features=True).searches(["voc12", "cub"], ["role"], "none")
    assert [c.base.settings["k"] for c in by_data if c.base.data == "cub"][-1] == 37.8


def test_errors_in_a_study(tmp_path: Path):
    path = tmp_path / "own.toml"

    def study(text, features=False):
        path.write_text(text)
        return load_study(str(path), features=features)

    good = 'title = "t"\nrun = ["an"]\n[images]\nprotocol = "voc12-lite2"\n'
    assert study(good).run == ("an",)
    for text, message in (
        (good.replace("run", "runs"), "unknown key 'runs'"),
        (good.replace('"an"', '"anx"'), "[Nn]o method named 'anx'"),
        ('title = "t"\n[images]\nprotocol = "voc12-lite2"\n', "'run' is missing"),
        (good.replace("voc12-lite2", "voc13"), "No file '.*voc13'"),
        (good + "[vary]\nk = 2\n", "own: vary: k must be a list"),
        (good + "[show]\ny = 'loss'\n", "show.y must be one of"),
        (good + "[show]\ny = []\n", "show.y must be a measure"),
        (good.replace('["an"]', '"an"'), "run must be a list of methods"),
        (good + "[show]\nx = 'lables'\n", "show.x must be one of labels, .*, not 'lables'"),
        (good.replace('"t"', "5"), "own: title must be a string, not 5"),
        (good.replace('["an"]', '[["an"]]'), "run must be a list of methods"),
        (good.replace('"voc12-lite2"', "5"), "own: images: protocol must be a string"),
        ('title = "t"\nrun = ["an"]\nimages = "voc12-lite2"\n', "own: images must be a table"),
        (good + "train = 5\n", "own: images: train must be a table"),
        (good + "epochs = 5\n", "own: images: unknown key 'epochs'"),
        (good + "methods = { em = 5 }\n", "own: methods: em must be a table"),
        (good + "[show]\ny = 5\n", "show.y must be a measure"),
        (good + "[show]\ny = [['test_map']]\n", "show.y must be one of"),
        (good + "[show]\nlog_x = 'yes'\n", "own: show: log_x must be true or false"),
        (good + "[vary]\nk = { voc12 = 2.0 }\n", "own: vary: k.voc12 must be a list"),
        (good + "[vary]\nk = ['two']\n", "own: vary.k must be a number"),
        (good + "[vary]\nk = [1.0, 2.0, 1.0]\n", "own: vary.k has 1.0 twice"),
        (good.replace('["an"]', '["an", "em", "an"]'), "own: run has 'an' twice"),
        (good + "[vary]\nbackbone = [50]\n", "own: vary.backbone must be a string, not 50"),
        (good + "[vary]\ntrain.seed = [0, 1]\n", "own: vary: train.seed cannot be set here: .* or --seeds"),
        (good + "[vary]\ntrain.views = [{ flip = 0.1 }]\n", "'train.views' is not one of"),
    ):
        with pytest.raises(InputError, match=message):
            study(text)
    with pytest.raises(InputError, match="on images only: leave --features out"):
        study(good, features=True)
    for varied, message in (
        ("colour = [1]", "own: vary: 'colour' cannot be varied"),
        ("draw.rows = ['half']", "own: vary: rows must be a number"),
        ("train.epochs = [0]", "own: vary: epochs must be between 1"),
        ("settings.alpha = [1]", "own: an: method 'an' has no setting 'alpha'"),
        ("k = [1.0, 2.0]", "own: vary.k has no effect: k is not used by an"),
        ("draw.strength = [0.0, 2.0]", "own: vary: draw.strength has no effect"),
    ):
        with pytest.raises(InputError, match=message):
            study(f"{good}[vary]\n{varied}\n").searches(["voc12"], ["an"], "none")
    on_features = good.replace("images", "features").replace("voc12-lite2", "features")
    for varied in ("head = ['linear', 'label-wise']", "head_settings.dropout = [0.0, 0.1]"):
        with pytest.raises(
            InputError, match=r"own: vary: on features every head is linear, so head.* cannot be varied"
        ):
            study(f"{on_features}[vary]\n{varied}\n", features=True)
    with pytest.raises(InputError, match=r"'train\.weight_decay' is not one of .*, the settings of a linear head"):
        study(on_features + "[vary]\ntrain.weight_decay = [0.0, 0.1]\n", features=True)


def test_study_finds_a_protocol_in_its_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.toml").write_text('title = "mine"\nkind = "linear"\n[data.d]\n[methods.an]\n')
    (tmp_path / "mine.toml").write_text("this is another file\n")
    path = tmp_path / "there" / "study.toml"
    monkeypatch.chdir(tmp_path)
    for named in ("mine.toml", "../there/mine.toml", tmp_path / "there" / "mine.toml"):
        path.write_text(f'title = "t"\nrun = ["an"]\n[features]\nprotocol = "{named}"\n')
        for name in ("there/study.toml", str(path)):
            assert list(load_study(name, features=True).protocol.data) == ["d"]
    (tmp_path / "there" / "mine.toml").write_text('title = "mine"\nkind = "linear"\ndata = 5\n')
    with pytest.raises(InputError, match=r"^mine: data must be a table"):  # said of the file that it is in
        load_study("there/study.toml", features=True)
    path.write_text('title = "t"\nrun = ["an"]\n[features]\nprotocol = "features"\n')
    (tmp_path / "there" / "features").write_text("a bare name is one of the package\n")
    assert "voc12" in load_study("there/study.toml", features=True).protocol.data


def test_page_on_reproducing_matches_protocols_and_papers():
    """Commands name a protocol, and every cell is the paper's number with the GPU hours of the dry run."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"`spml bench ([\w-]+) --data [^`]+` \| `([\w-]+)` \|", text))
    assert set(rows) == {"cole2021-linear", "cole2021-finetune", "zhou2022", "lasd", "lac2022"}
    for name, entry in rows.items():
        planned = plan(name, need_data=False)
        papers = paper_values(planned.protocol.paper)
        cells = []
        for data in ("voc12", "coco", "nus", "cub"):
            every = [search for search in planned.searches if search.base.data == data]
            own = [search for search in every if search.base.entry == entry]
            hours = [dry_run(dataclasses.replace(planned, searches=part)).notes[-2].split()[1] for part in (own, every)]
            assert planned.protocol.paper is not None
            number = papers[planned.protocol.paper.setting, entry, data]
            cells.append(f"{number} ({'; '.join(hours)})")
        assert f"| `{name}` | {' | '.join(cells)} |" in text


def test_page_on_reproducing_has_the_counts_of_the_papers():
    text = (Path(__file__).resolve().parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for name, counts in PAPERS.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` | "))
        sizes = ", ".join(f"{number:,}" for number in (counts.train, counts.validation, counts.test))
        assert line.endswith(f"| {sizes} | {counts.positives} |")


def test_page_on_missing_rows_counts_its_runs():
    page = Path(__file__).resolve().parents[2] / "docs" / "developers" / "missing-voc-runs.md"
    text = page.read_text(encoding="utf-8")
    commands = re.findall(r"^\$VOC (--head attention )?--methods (\S+) --seeds (\S+) --out", text, re.MULTILINE)
    counts = [int(count) for count in re.findall(r"^\| \d\. .* \| (\d+) \| \d+ \|$", text, re.MULTILINE)]
    assert len(commands) == 5
    for (head, methods, seeds), count in zip(commands, counts, strict=True):
        chosen = ["attention"] if head else []
        planned = plan("voc12-lite2", methods=methods.split(","), heads=chosen, need_data=False)
        assert len(planned.searches) * len(parse_seeds(seeds)) == count
