"""Style and definitions of the graph picture: light and dark, no scripts, nothing from outside.

Inside JupyterLab its theme variables decide; elsewhere (an image, a web page) the reader's own
preference does. The picture paints its own background, so ink and paper always fit.
"""

from kit import colours

STYLE = f"""
.kg{{--ink:var(--jp-ui-font-color1,#222);--soft:var(--jp-ui-font-color2,#666);
--paper:var(--jp-layout-color0,#fff);--box:var(--jp-layout-color1,#fff);
--line:var(--jp-border-color1,#b5b5b5);--edge:var(--jp-ui-font-color3,#8a8a8a);
font-family:var(--jp-ui-font-family,system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif)}}
@media (prefers-color-scheme:dark){{.kg{{--ink:var(--jp-ui-font-color1,#e4e4e4);
--soft:var(--jp-ui-font-color2,#aaa);--paper:var(--jp-layout-color0,#161616);
--box:var(--jp-layout-color1,#212121);--line:var(--jp-border-color1,#555);
--edge:var(--jp-ui-font-color3,#8f8f8f)}}}}
.kg .paper{{fill:var(--paper)}}
.kg text{{fill:var(--ink)}}
.kg .soft{{fill:var(--soft)}}
.kg .halo{{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}}
.kg .box{{fill:var(--box);stroke:var(--line);stroke-width:1}}
.kg .stack{{fill:var(--box);stroke:var(--line);stroke-width:1}}
.kg .comm{{fill:var(--box);stroke:{colours.EXPOSED};stroke-width:2.6}}
.kg .wait{{fill:var(--paper);stroke:{colours.IDLE};stroke-width:1.4;stroke-dasharray:4 3}}
.kg .mark{{stroke:var(--line);stroke-width:1}}
.kg .edge{{fill:none;stroke:var(--edge)}}
.kg .edge.far{{opacity:.55}}
.kg .edge.comm{{fill:none;stroke:{colours.EXPOSED};stroke-width:2}}
.kg .tip{{fill:var(--edge)}}
.kg .tipcomm{{fill:{colours.EXPOSED}}}
.kg g.node:hover>rect{{stroke:var(--ink)}}
.kg path.edge:hover{{opacity:1;stroke:var(--ink)}}
"""


def definitions(prefix: str) -> str:
    """Hatch and arrow heads; `prefix` keeps the ids of two pictures on one page apart."""
    return (
        f'<defs><pattern id="{prefix}hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="2.4" height="7" fill="{colours.EXPOSED}"/></pattern>'
        + _head(f"{prefix}tip", "tip")
        + _head(f"{prefix}tipcomm", "tipcomm")
        + "</defs>"
    )


def _head(name: str, kind: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="{kind}" d="M0 0.8 8 4 0 7.2z"/></marker>'
    )
