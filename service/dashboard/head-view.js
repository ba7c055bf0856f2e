/** One head: its map, its statistics, and for a pair where each text looks. */

import { element } from './dom.js';
import { Latest } from './latest.js';
import { namedMap, plainMap } from './maps.js';
import { MapView } from './mapview.js';
import { quadrants } from './matrix.js';
import { headPad } from './roving.js';
import { LABELS, STATISTICS, labelOf } from './statistics.js';
import { partSwitch, scaleSwitch, weakestLink } from './switches.js';
import { tokenUnits } from './words.js';

export class HeadView {
  #reading = null;
  #state = null;
  #map = null;
  #weights = null;
  #pad = null;
  #latest;

  constructor(page) {
    this.page = page;
    this.#latest = new Latest(page.report);
    this.mapView = new MapView(page);
    this.title = element('h2');
    this.label = element('p', { class: 'says' });
    this.statistics = element('dl', { class: 'statistics' });
    this.padPlace = element('div');
    this.scale = scaleSwitch(page);
    this.weakest = weakestLink(page);
    this.parts = partSwitch(page);
    this.quadrants = element('div', { class: 'quadrants' });
    this.element = element(
      'div',
      {},
      element(
        'div',
        { class: 'head-top' },
        element('div', { class: 'head-facts' }, this.title, this.label, this.statistics),
        this.padPlace,
      ),
      element('div', { class: 'controls' }, this.parts.element, this.weakest.element, this.scale.element),
      this.mapView.element,
      this.quadrants,
    );
  }

  show(reading, state) {
    const layer = Math.min(state.layer, reading.layers - 1);
    const head = Math.min(state.head, reading.heads - 1);
    if (reading !== this.#reading) this.#begin(reading);
    this.#state = { ...state, layer, head };
    this.scale.show(state);
    this.weakest.show(state);
    this.parts.show(state, reading);
    this.#describe();
    const key = `${layer}.${head}`;
    if (this.#weights?.key === key) this.#draw();
    else
      this.#latest.run(key, async (signal) => {
        const values = await reading.map(layer, head, signal);
        if (signal.aborted) return;
        this.#weights = { key, values };
        this.#draw();
      });
  }

  leave() {
    this.#latest.stop();
  }

  redraw() {
    if (this.#map) this.mapView.redraw();
  }

  #begin(reading) {
    this.#reading = reading;
    this.#weights = null;
    this.#latest.stop();
    this.#pad = headPad({
      label: 'Heads',
      layers: reading.layers,
      heads: reading.heads,
      moves: true,
      onPick: (layer, head) =>
        this.page.go({ layer, head }, { replace: document.activeElement?.dataset.layer !== undefined }),
    });
    this.padPlace.replaceChildren(this.#pad.element);
  }

  #describe() {
    const { layer, head, sort } = this.#state;
    const reading = this.#reading;
    const statistics = reading.statisticsOf(layer, head);
    const label = labelOf(statistics, reading.size, reading.separators);
    this.title.textContent = `Layer ${layer} · Head ${head}`;
    this.label.textContent = label
      ? `${LABELS[label].name}: ${LABELS[label].says}`
      : 'No single behaviour dominates.';
    this.statistics.replaceChildren(
      ...Object.entries(STATISTICS).map(([name, { name: called, says }]) =>
        element(
          'div',
          { title: says },
          element('dt', {}, called),
          element('dd', { data: { statistic: name } }, statistics[name].toFixed(3)),
        ),
      ),
    );
    const by = sort in STATISTICS ? sort : 'confidence';
    const most = Math.max(...reading.statistics[by], 1e-9);
    this.#pad.show((l, h) => {
      const value = reading.statistics[by][l * reading.heads + h];
      const off = reading.off.includes(`${l}.${h}`) ? ', switched off' : '';
      return {
        value: value / most,
        pressed: l === layer && h === head,
        says: `${STATISTICS[by].name} ${value.toFixed(2)}${off}`,
      };
    });
  }

  #draw() {
    const { layer, head } = this.#state;
    this.#map = namedMap(this.#weights.values, this.#reading, this.#state);
    this.mapView.show(this.#map, this.#state, `Layer ${layer} head ${head}`);
    this.#fillQuadrants();
    this.page.say(`Layer ${layer} head ${head} shown.`);
  }

  #fillQuadrants() {
    const isPair = this.#reading.texts.length === 2;
    this.quadrants.hidden = !isPair;
    if (!isPair) return;
    const shares = quadrants(this.#weights.values, tokenUnits(this.#reading));
    const header = element(
      'tr',
      {},
      ...['', 'to the first', 'to the second', 'to special tokens'].map((name) =>
        element('th', { scope: 'col' }, name),
      ),
    );
    const rows = shares.map((row, segment) =>
      element(
        'tr',
        {},
        element('th', { scope: 'row' }, `from the ${segment ? 'second' : 'first'}`),
        ...row.map((share) => {
          const cell = element('td', { class: 'shaded' }, share.toFixed(3));
          cell.style.setProperty('--share', share);
          return cell;
        }),
      ),
    );
    this.quadrants.replaceChildren(
      element(
        'table',
        {},
        element('caption', {}, 'Where each text looks, on average over its own tokens'),
        element('thead', {}, header),
        element('tbody', {}, ...rows),
      ),
    );
  }

  exported() {
    const { layer, head } = this.#state;
    const statistics = this.#reading.statisticsOf(layer, head);
    return {
      name: `layer ${layer} head ${head}`,
      scene: this.#map && this.mapView.scene(),
      json: {
        layer,
        head,
        label: labelOf(statistics, this.#reading.size, this.#reading.separators),
        statistics,
        ...(this.#reading.texts.length === 2 && this.#weights
          ? { quadrants: quadrants(this.#weights.values, tokenUnits(this.#reading)) }
          : {}),
        ...(this.#map ? plainMap(this.#map) : {}),
      },
    };
  }
}
