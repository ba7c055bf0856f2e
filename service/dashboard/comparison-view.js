/** The same heads on another text. */

import { contrast } from './contrast.js';
import { element } from './dom.js';
import { Latest } from './latest.js';
import { namedMap } from './maps.js';
import { largest } from './matrix.js';
import { open } from './reading.js';
import { headPad } from './roving.js';
import { STATISTICS } from './statistics.js';
import { Threefold } from './threefold.js';

const TYPING_MS = 350;
const MOST_DIFFERENT = 6;

export class ComparisonView {
  #reading = null;
  #other = null;
  #state = null;
  #pad = null;
  #differences = null;
  #shown = null;
  #timer = 0;
  #latest;
  #maps;

  constructor(page) {
    this.page = page;
    this.#latest = new Latest(page.report);
    this.#maps = new Latest(page.report);
    this.threefold = new Threefold();
    this.text = element('textarea', {
      id: 'text-c',
      rows: 2,
      spellcheck: false,
      on: { input: () => this.#typed() },
    });
    this.title = element('h3');
    this.padPlace = element('div');
    this.ranking = element('ol', { class: 'ranking' });
    this.how = element('p', { class: 'says' });
    this.table = element('tbody');
    const header = element(
      'tr',
      {},
      ...['', 'Text', 'Other text', 'Difference'].map((name) => element('th', { scope: 'col' }, name)),
    );
    this.element = element(
      'div',
      {},
      element('h2', {}, 'Comparison'),
      element('div', { class: 'field' }, element('label', { for: 'text-c' }, 'Other text'), this.text),
      element(
        'div',
        { class: 'comparison' },
        element(
          'section',
          { 'aria-label': 'Where they differ' },
          element('h3', {}, 'Where they differ'),
          this.padPlace,
          this.how,
        ),
        element(
          'section',
          { 'aria-label': 'Most different heads' },
          element('h3', {}, 'Most different heads'),
          this.ranking,
        ),
        element(
          'section',
          { 'aria-label': 'Statistics' },
          this.title,
          element('table', {}, element('thead', {}, header), this.table),
        ),
      ),
      this.threefold.element,
    );
  }

  show(reading, state) {
    const layer = Math.min(state.layer, reading.layers - 1);
    const head = Math.min(state.head, reading.heads - 1);
    if (document.activeElement !== this.text) this.text.value = state.c;
    const changed = reading !== this.#reading || state.c !== this.#state?.c || state.cut !== this.#state?.cut;
    this.#state = { ...state, layer, head };
    if (changed) this.#begin(reading);
    if (this.#other) this.#showHead();
    else this.#open();
  }

  leave() {
    clearTimeout(this.#timer);
    this.#latest.stop();
    this.#maps.stop();
  }

  redraw() {
    this.threefold.redraw();
  }

  #typed() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.page.go({ c: this.text.value }, { replace: true }), TYPING_MS);
  }

  #begin(reading) {
    this.#reading = reading;
    this.#other = null;
    this.#differences = null;
    this.#shown = null;
    this.#latest.stop();
    this.#maps.stop();
    this.#pad = headPad({
      label: 'Heads, by how far they differ',
      layers: reading.layers,
      heads: reading.heads,
      moves: true,
      onPick: (layer, head) => this.page.go({ layer, head }, { replace: true }),
    });
    this.padPlace.replaceChildren(this.#pad.element);
  }

  #open() {
    const { c, cut, off } = this.#state;
    const reading = this.#reading;
    this.#latest.run('other', async (signal) => {
      const other = await open({ texts: [c], cut, off }, signal);
      if (signal.aborted) return;
      this.#other = other;
      this.#showHead();
      const differences = await contrast(reading, other, signal);
      if (signal.aborted) return;
      this.#differences = differences;
      this.#showPad();
    });
  }

  #showHead() {
    const { layer, head } = this.#state;
    const [first, second] = [this.#reading, this.#other].map((reading) => reading.statisticsOf(layer, head));
    this.title.textContent = `Layer ${layer} · Head ${head}`;
    this.table.replaceChildren(
      ...Object.entries(STATISTICS).map(([name, { name: called }]) =>
        element(
          'tr',
          {},
          element('th', { scope: 'row' }, called),
          ...[first[name], second[name], second[name] - first[name]].map((value) =>
            element('td', { class: 'number' }, value.toFixed(3)),
          ),
        ),
      ),
    );
    this.#showPad();
    const key = `${layer}.${head}`;
    if (this.#shown?.key === key) this.#draw();
    else
      this.#maps.run(key, async (signal) => {
        const maps = await Promise.all(
          [this.#reading, this.#other].map((reading) => reading.map(layer, head, signal)),
        );
        if (signal.aborted) return;
        this.#shown = { key, maps };
        this.#draw();
        this.page.say(`Layer ${layer} head ${head} of both texts shown.`);
      });
  }

  #showPad() {
    const { layer, head } = this.#state;
    const { heads, size } = this.#reading;
    const most = this.#differences ? Math.max(...this.#differences, 1e-12) : 1;
    this.#pad.show((l, h) => {
      const value = this.#differences?.[l * heads + h] ?? 0;
      return {
        value: value / most,
        pressed: l === layer && h === head,
        says: `differs by ${value.toFixed(3)}`,
      };
    });
    this.how.textContent =
      this.#other?.size === size
        ? 'Both have equally many tokens: the share of a row’s weight that lies elsewhere.'
        : 'The texts differ in length: the mean difference of confidence and shares.';
    this.ranking.replaceChildren(
      ...(this.#differences ? largest(this.#differences, MOST_DIFFERENT) : []).map((place) => {
        const [l, h] = [Math.floor(place / heads), place % heads];
        return element(
          'li',
          {},
          element(
            'button',
            { type: 'button', class: 'chip', on: { click: () => this.page.go({ layer: l, head: h }) } },
            `${l}·${h}  ${this.#differences[place].toFixed(3)}`,
          ),
        );
      }),
    );
  }

  #draw() {
    const [first, second] = [this.#reading, this.#other].map((reading, i) =>
      namedMap(this.#shown.maps[i], reading, this.#state),
    );
    this.threefold.show(first, second, ['Text', 'Other text'], this.#state);
  }

  exported() {
    const { layer, head, c } = this.#state;
    return {
      name: `comparison layer ${layer} head ${head}`,
      scene: this.#shown && this.threefold.scene(),
      json: {
        layer,
        head,
        other: c,
        ...(this.#differences ? { differences: [...this.#differences] } : {}),
        ...(this.#shown ? { maps: this.threefold.json() } : {}),
      },
    };
  }
}
