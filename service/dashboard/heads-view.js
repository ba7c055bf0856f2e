/** All heads as thumbnails, in the model's order or sorted by what they do. */

import { choice, element, setOptions } from './dom.js';
import { decode } from './float16.js';
import { Latest } from './latest.js';
import { namedMap, placeOf } from './maps.js';
import { quadrants } from './matrix.js';
import { enter, rove } from './roving.js';
import { LABELS, STATISTICS, labelOf } from './statistics.js';
import { scaleSwitch } from './switches.js';
import { gallery, makeThumbnail, paintThumbnail, reduced } from './thumbnails.js';
import { unitsOf } from './words.js';

const SIGNIFICANT = 3;

export class HeadsView {
  /** @type {import('./thumbnails.js').Thumbnail[]} */
  #thumbnails = [];
  #reading = null;
  #state = null;
  #cross = null;
  #link = null;
  #maps;
  #links;

  constructor(page) {
    this.page = page;
    this.#maps = new Latest(page.report);
    this.#links = new Latest(page.report);
    this.sort = choice('Sort by', [], 'position', (sort) => page.go({ sort, up: false }));
    this.direction = element('button', {
      type: 'button',
      class: 'quiet',
      on: { click: () => page.go({ up: !page.state.up }) },
    });
    this.says = element('p', { class: 'says' });
    this.scale = scaleSwitch(page);
    this.grid = element('div', { class: 'heads' });
    rove(this.grid);
    this.element = element(
      'div',
      {},
      element('div', { class: 'controls' }, this.sort.element, this.direction, this.scale.element, this.says),
      this.grid,
    );
  }

  show(reading, state) {
    if (reading !== this.#reading) this.#begin(reading);
    const seen =
      this.#state &&
      this.#state.words === state.words &&
      this.#state.bare === state.bare &&
      this.#state.part === state.part;
    this.#state = state;
    this.scale.show(state);
    this.#offerSorts();
    this.#load(reading, state, seen);
    this.#arrange();
    this.redraw();
  }

  leave() {
    this.#maps.stop();
    this.#links.stop();
  }

  #begin(reading) {
    this.#reading = reading;
    this.leave();
    this.#cross = null;
    this.#link = null;
    this.#thumbnails = [];
    for (let layer = 0; layer < reading.layers; layer += 1) {
      for (let head = 0; head < reading.heads; head += 1) {
        const statistics = reading.statisticsOf(layer, head);
        const label = labelOf(statistics, reading.size, reading.separators);
        const onPick = () => this.page.go({ view: 'head', layer, head });
        const thumbnail = makeThumbnail(layer, head, label, onPick);
        thumbnail.button.classList.toggle('off', reading.off.includes(`${layer}.${head}`));
        this.#thumbnails.push(thumbnail);
      }
    }
  }

  #offerSorts() {
    const options = [
      { value: 'position', label: 'Layer and head' },
      { value: 'label', label: 'Behaviour' },
      ...Object.entries(STATISTICS).map(([value, { name }]) => ({ value, label: name })),
    ];
    const [from, to] = this.#ends();
    if (from && to) options.push({ value: 'link', label: `Link ${from.name} → ${to.name}` });
    if (this.#reading.texts.length === 2) options.push({ value: 'cross', label: 'Between the texts' });
    setOptions(this.sort.select, options, this.#sorting());
    this.direction.hidden = this.#sorting() === 'position';
    this.direction.textContent = this.#state.up ? '↑ smallest first' : '↓ largest first';
    this.says.textContent = STATISTICS[this.#sorting()]?.says ?? '';
  }

  #ends() {
    const units = unitsOf(this.#reading, { ...this.#state, bare: false });
    return [this.#state.from, this.#state.to].map((token) =>
      token === null ? undefined : units[placeOf(units, token)],
    );
  }

  /** The sort that the state asks for, as far as it can be had. */
  #sorting() {
    const { sort } = this.#state;
    const [from, to] = this.#ends();
    if (sort === 'link') return from && to ? sort : 'position';
    if (sort === 'cross') return this.#reading.texts.length === 2 ? sort : 'position';
    return sort in STATISTICS || sort === 'label' ? sort : 'position';
  }

  #load(reading, state, seen) {
    if (!seen) {
      this.#maps.stop();
      for (const thumbnail of this.#thumbnails) thumbnail.small = null;
    }
    if (this.#thumbnails.some((thumbnail) => !thumbnail.small)) {
      this.#maps.run(`${state.words}${state.bare}${state.part}`, (signal) =>
        this.#fill(reading, state, signal),
      );
    }
    const [from, to] = this.#ends();
    if (this.#sorting() === 'link') {
      this.#links.run(`${from.tokens}-${to.tokens}`, async (signal) => {
        const rows = await reading.lookOf(from.tokens, signal);
        if (signal.aborted) return;
        this.#link = this.#thumbnails.map((_, i) =>
          to.tokens.reduce((sum, token) => sum + rows[i * reading.size + token], 0),
        );
        this.#arrange();
      });
    }
  }

  async #fill(reading, state, signal) {
    const cross = new Float32Array(this.#thumbnails.length);
    const units = unitsOf(reading, { words: false, bare: false });
    for await (const { layer, head, bits } of reading.everyMap(signal)) {
      if (signal.aborted) return;
      const weights = decode(bits);
      const place = layer * reading.heads + head;
      if (reading.texts.length === 2) {
        const [first, second] = quadrants(weights, units);
        cross[place] = (first[1] + second[0]) / 2;
      }
      const thumbnail = this.#thumbnails[place];
      thumbnail.small = reduced(namedMap(weights, reading, state));
      paintThumbnail(thumbnail, this.#state);
      if (reading.size > 128)
        await new Promise((resume) => {
          setTimeout(resume);
        });
    }
    this.#cross = cross;
    if (this.#sorting() === 'cross') this.#arrange();
    this.page.say(`${this.#thumbnails.length} heads drawn.`);
  }

  redraw() {
    for (const thumbnail of this.#thumbnails) paintThumbnail(thumbnail, this.#state);
  }

  #value(thumbnail) {
    const sorting = this.#sorting();
    const place = thumbnail.layer * this.#reading.heads + thumbnail.head;
    if (sorting === 'link') return this.#link?.[place] ?? 0;
    if (sorting === 'cross') return this.#cross?.[place] ?? 0;
    return this.#reading.statistics[sorting]?.[place] ?? 0;
  }

  #ordered() {
    const sorting = this.#sorting();
    if (sorting === 'position') return this.#thumbnails;
    const names = Object.keys(LABELS);
    const key =
      sorting === 'label'
        ? ({ label }) => -(label ? names.indexOf(label) : names.length)
        : (thumbnail) => this.#value(thumbnail);
    const sign = this.#state.up ? 1 : -1;
    return [...this.#thumbnails].sort((a, b) => sign * (key(a) - key(b)));
  }

  #arrange() {
    const sorting = this.#sorting();
    const { layer, head } = this.#state;
    for (const thumbnail of this.#thumbnails) {
      const { button, label } = thumbnail;
      const value =
        sorting === 'position' || sorting === 'label' ? '' : this.#value(thumbnail).toPrecision(SIGNIFICANT);
      const name = `${thumbnail.layer}·${thumbnail.head}`;
      button.querySelector('.thumbnail-name').textContent = value ? `${name}  ${value}` : name;
      button.querySelector('.thumbnail-label').textContent = label ? LABELS[label].name : '';
      const off = this.#reading.off.includes(`${thumbnail.layer}.${thumbnail.head}`) ? ', switched off' : '';
      button.setAttribute(
        'aria-label',
        `Layer ${thumbnail.layer} head ${thumbnail.head}${label ? `, ${LABELS[label].name}` : ''}${value ? `, ${value}` : ''}${off}`,
      );
      button.title = label ? LABELS[label].says : '';
      button.classList.toggle('current', thumbnail.layer === layer && thumbnail.head === head);
    }
    this.#lay(
      this.#ordered().map(({ button }) => button),
      sorting === 'position',
    );
    enter(this.grid, this.grid.querySelector('.current') ?? this.grid.querySelector('button'));
  }

  #lay(buttons, byLayer) {
    const focused = document.activeElement;
    const { layers, heads } = this.#reading;
    this.grid.style.setProperty('--heads', heads);
    this.grid.classList.toggle('by-layer', byLayer);
    this.grid.replaceChildren(
      ...(byLayer
        ? Array.from({ length: layers }, (_, layer) =>
            element(
              'section',
              { class: 'layer', 'aria-label': `Layer ${layer}` },
              element('h3', {}, `Layer ${layer}`),
              element('div', { class: 'thumbnails' }, ...buttons.slice(layer * heads, (layer + 1) * heads)),
            ),
          )
        : [element('div', { class: 'thumbnails' }, ...buttons)]),
    );
    if (this.grid.contains(focused)) focused.focus();
  }

  exported() {
    const ordered = this.#ordered();
    const sorting = this.#sorting();
    return {
      name: `heads by ${sorting}`,
      scene: gallery(ordered, this.#reading.heads),
      json: {
        sort: sorting,
        up: this.#state.up,
        heads: ordered.map((thumbnail) => ({
          layer: thumbnail.layer,
          head: thumbnail.head,
          label: thumbnail.label,
          ...(sorting === 'link' || sorting === 'cross' ? { [sorting]: this.#value(thumbnail) } : {}),
          statistics: this.#reading.statisticsOf(thumbnail.layer, thumbnail.head),
        })),
      },
    };
  }
}
