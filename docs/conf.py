"""The site: `make docs` builds it into build/docs. Warnings are errors, and nothing is fetched from the internet."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import vecenv  # noqa: E402

project = "vecenv"
author = "The vecenv authors"
version = release = vecenv.__version__

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design", "sphinx.ext.viewcode", "api_pages", "command_pages"]
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
pygments_style = "tango"
pygments_dark_style = "monokai"

html_theme = "furo"
html_title = f"vecenv {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False
smartquotes = False
html_theme_options = {"navigation_with_keys": True}
