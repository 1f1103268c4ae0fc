"""The layouts: panels are stacked in a small terminal, and get a second column in a wide one."""

from __future__ import annotations

WIDE_COLUMNS = 100
HUGE_COLUMNS = 170

_BASE = """
Screen { layout: vertical; }
#status { height: 1; background: $panel; }
#body { height: 1fr; layout: vertical; }
#main { height: 1fr; }
#side { height: auto; }
#keys {
    height: 1; background: $panel;
    link-style: none; link-color: $foreground; link-background: $panel;
}
#filter { height: 1; border: none; padding: 0 1; display: none; }
#filter.open { display: block; }
RunList, BeamTree, StepPanel, EventLogPanel {
    border: none; border-top: solid $foreground-muted;
    border-title-style: bold; border-subtitle-style: not bold;
}
RunList:focus, BeamTree:focus, StepPanel:focus, EventLogPanel:focus {
    border-top: heavy $accent; border-title-style: bold reverse;
}
.lines--cursor { background: $panel-lighten-2; text-style: bold; }
#runs { height: 4; }
#tree { height: 1fr; }
#step { height: 4; scrollbar-size: 1 1; }
#step-text { height: auto; }
#log { height: 4; display: none; }
Screen.show-log #log { display: block; }
Screen.show-log #step { display: none; }
#side Panel { height: 1; }

ModalScreen { align: center middle; }
.dialog {
    width: 72; max-width: 96%; height: auto; max-height: 96%; padding: 0 1;
    border: round $accent; background: $surface; border-title-style: bold;
}
.dialog.tall { height: 36; }
.dialog TextArea { height: 6; border: round $foreground-muted; }
#search { border: none; border-top: solid $foreground-muted; padding: 0 1; height: 2; }
.dialog OptionList {
    height: auto; max-height: 10; min-height: 5; padding: 0;
    border: none; border-top: solid $foreground-muted;
}
#wrong { height: auto; }
#wrong { color: $warning; text-style: bold; }
"""

_TWO_COLUMNS = """
WIDE #body { layout: horizontal; }
WIDE #main { width: 1fr; height: 100%; }
WIDE #side { width: 44; height: 100%; }
WIDE #side Panel { border: round $foreground-muted; border-title-style: bold; }
WIDE RunList, WIDE BeamTree, WIDE StepPanel, WIDE EventLogPanel {
    border: round $foreground-muted;
}
WIDE RunList:focus, WIDE BeamTree:focus,
WIDE StepPanel:focus, WIDE EventLogPanel:focus { border: heavy $accent; }
WIDE #runs { height: 8; }
WIDE #step { height: 7; display: block; }
WIDE #log { height: 1fr; display: block; }
WIDE #certainty { height: 12; }
WIDE #votes { height: 5; }
WIDE #rates { height: 4; }
WIDE #memory { height: 5; }
WIDE #device { height: 5; }
"""

_HUGE = """
Screen.-huge #side { width: 70; }
Screen.-huge #certainty { height: 17; }
Screen.-huge #votes { height: 9; }
Screen.-huge #runs { height: 14; }
Screen.-huge #step { height: 12; }
"""

CSS = "".join(
    (
        _BASE,
        _TWO_COLUMNS.replace("WIDE", "Screen.-wide"),
        _TWO_COLUMNS.replace("WIDE", "Screen.-huge"),
        _HUGE,
    )
)
