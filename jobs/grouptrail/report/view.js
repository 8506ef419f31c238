/* The interval in view, and how wheel, drag, buttons and keys change it. */

const GUTTER = 190;

class View {
  constructor(until) {
    this.whole = until;
    this.from = 0;
    this.to = until;
    this.width = 800;
    this.changed = () => {};
  }

  /** The pixel of a time. */
  x(at) {
    return GUTTER + ((at - this.from) / (this.to - this.from)) * (this.width - GUTTER);
  }

  /** The time of a pixel. */
  at(x) {
    return this.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.to - this.from);
  }

  show(from, to) {
    const length = Math.min(Math.max(to - from, 20), this.whole);
    this.from = Math.min(Math.max(from, 0), this.whole - length);
    this.to = this.from + length;
    this.changed();
  }

  /** Makes the stretch `factor` times as long, with one time where it was. */
  zoom(factor, around = (this.from + this.to) / 2) {
    const length = Math.min((this.to - this.from) * factor, this.whole);
    const share = (around - this.from) / (this.to - this.from);
    this.show(around - share * length, around + (1 - share) * length);
  }

  /** Moves by a share of the stretch. */
  pan(share) {
    const step = share * (this.to - this.from);
    this.show(this.from + step, this.to + step);
  }

  all() {
    this.show(0, this.whole);
  }
}

const STEPS = [
  10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3,
  7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3, 1209600e3, 2592000e3, 7776000e3, 31536000e3,
  157680e6, 1576800e6, 7884000e6,
];

/** Round times in view, about a hundred pixels apart, each with its label. */
function ticks(view) {
  const wanted = ((view.to - view.from) / (view.width - GUTTER)) * 100;
  const step = STEPS.find((size) => size >= wanted) ?? STEPS.at(-1);
  const marks = [];
  let day = "";
  for (let at = Math.ceil((DATA.start + view.from) / step) * step; at <= DATA.start + view.to; at += step) {
    const text = new Date(at).toISOString();
    const clock = step < 1000 ? text.slice(11, 23) : step < 60e3 ? text.slice(11, 19) : text.slice(11, 16);
    const label = step >= 86400e3 ? text.slice(0, 10) : clock;
    marks.push({ at: at - DATA.start, label, day: step < 86400e3 && text.slice(0, 10) !== day ? text.slice(0, 10) : "" });
    day = text.slice(0, 10);
  }
  return marks;
}

/** Wheel, drag and keys on the picture; `click` is called for a press without a drag. */
function listen(picture, view, brush, click) {
  let pressed = null;
  const place = (event) => event.clientX - picture.getBoundingClientRect().left;

  picture.addEventListener("wheel", (event) => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      view.pan(event.deltaX / (view.width - GUTTER));
    } else if (event.ctrlKey || event.altKey || event.metaKey || !event.target.closest("#lanes.scrolls")) {
      view.zoom(Math.exp(event.deltaY / 400), view.at(Math.max(place(event), GUTTER)));
    } else {
      return;
    }
    event.preventDefault();
  }, { passive: false });

  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.clientX >= picture.getBoundingClientRect().left + view.width) return;
    pressed = { x: place(event), from: view.from, to: view.to, pans: event.shiftKey, moved: false };
  });
  addEventListener("pointermove", (event) => {
    if (!pressed) return;
    const x = place(event);
    pressed.moved ||= Math.abs(x - pressed.x) > 4 && pressed.x >= GUTTER;
    if (!pressed.moved) return;
    hideTip();
    if (pressed.pans) {
      const step = ((pressed.x - x) / (view.width - GUTTER)) * (pressed.to - pressed.from);
      view.show(pressed.from + step, pressed.to + step);
    } else {
      brush.hidden = false;
      brush.style.left = `${Math.max(Math.min(x, pressed.x), GUTTER)}px`;
      brush.style.width = `${Math.abs(Math.max(x, GUTTER) - pressed.x)}px`;
    }
  });
  addEventListener("pointerup", (event) => {
    if (!pressed) return;
    const [begun, x] = [pressed, place(event)];
    pressed = null;
    brush.hidden = true;
    if (!begun.moved) click(event);
    else if (!begun.pans) view.show(view.at(Math.max(Math.min(x, begun.x), GUTTER)), view.at(Math.max(x, begun.x)));
  });

  const keys = {
    "+": () => view.zoom(0.5), "=": () => view.zoom(0.5), "-": () => view.zoom(2), "0": () => view.all(),
    ArrowLeft: () => view.pan(-0.25), ArrowRight: () => view.pan(0.25), Home: () => view.all(),
  };
  picture.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
  });
  return () => pressed?.moved ?? false;
}
