"""Configuration of the documentation. `make docs` builds it, offline, with warnings as errors."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

# Tutorials call `spml` and import shapes.py.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "tutorials"), os.environ.get("PYTHONPATH")]))
os.environ["COLUMNS"] = "100"

from numpydoc.xref import DEFAULT_LINKS  # noqa: E402

import spml  # noqa: E402

project = "spml"
author = "The spml authors"
copyright = author
version = release = spml.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "commands",
    "mathml",
    "results_pages",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "py:obj"  # `spml.train` in a docstring links to its page; other names become code
add_module_names = False
pygments_style = "default"

autosummary_generate = True
autosummary_filename_map = {"spml.Loss": "spml.Loss-class"}  # some file systems do not tell it from spml.loss
autodoc_typehints = "none"  # numpydoc's Parameters sections state the types
autodoc_member_order = "bysource"
autodoc_default_options = {  # scikit-learn's own, which refer to its glossary
    "exclude-members": ",".join(f"set_{step}_request" for step in ("fit", "score", "predict", "transform"))
}
numpydoc_show_class_members = False
DEFAULT_LINKS.clear()  # they lead to Python's documentation, which is not at hand offline
numpydoc_xref_param_type = True  # types of parameters link to the pages of these classes; other words stay text
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    **{name: f"spml.{name}" for name in ("Dataset", "InputError", "Labels", "Loss", "Run")},
    **{name: f"spml.methods.{name}" for name in ("Batch", "Clock", "Method", "Needs", "Problem")},
    "KEstimate": "spml.labels.KEstimate",
    "Outputs": "spml.models.Outputs",
    "Recovered": "spml.recover.Recovered",
}
toc_object_entries_show_parents = "hide"
highlight_language = "bash"  # of blocks without a language

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_code_prompt_show = "Show code"
nb_code_prompt_hide = "Hide code"

html_theme = "pydata_sphinx_theme"
html_title = f"spml {version}"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "spml", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg", "alt_text": ""},
    "navbar_align": "left",
    "show_toc_level": 2,
    "show_nav_level": 1,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "getting-started": []}  # they have no other pages in their section
