"""The site: `make docs` builds it into build/docs. Warnings are errors, and nothing is fetched from the internet."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import vecenv  # noqa: E402

project = "vecenv"
author = "The vecenv authors"
version = release = vecenv.__version__

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "api_pages",
    "command_pages",
    "table_pages",
]
# Each inventory is a file of this repository, with the few names that pages link to: a build needs no internet.
intersphinx_mapping = {
    "gymnasium": ("https://gymnasium.farama.org/", "inventories/gymnasium.inv"),
    "numpy": ("https://numpy.org/doc/stable/", "inventories/numpy.inv"),
    "torch": ("https://docs.pytorch.org/docs/stable/", "inventories/torch.inv"),
}
viewcode_line_numbers = True
source_suffix = {".md": "markdown"}
nitpicky = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 72
add_module_names = True

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist", "attrs_inline"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
pygments_style = "tango"
pygments_dark_style = "monokai"

html_theme = "furo"
html_title = f"vecenv {release}"
html_static_path = ["_static"]
html_logo = html_favicon = "_static/logo.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False
smartquotes = False
html_theme_options = {"navigation_with_keys": True}
