/** Which head links these two? All heads ranked by the weight from one token, or word, to another. */

import { element, setOptions } from './dom.js';
import { Latest } from './latest.js';
import { placeOf } from './maps.js';
import { largest } from './matrix.js';
import { unitsOf } from './words.js';

const BEST = 8;

export class Finder {
  #reading = null;
  #state = null;
  #latest;
  #selects;
  #ranking;

  constructor(page, place) {
    this.page = page;
    this.#latest = new Latest((error) => {
      this.#reading = null;
      page.report(error);
    });
    this.#selects = ['from', 'to'].map((end) => {
      const select = element('select', {
        'aria-label': `${end === 'from' ? 'From' : 'To'} token`,
        on: { change: () => page.go({ [end]: select.value === '' ? null : Number(select.value) }) },
      });
      return select;
    });
    this.#ranking = element('ol', { class: 'ranking' });
    place.append(
      element('h2', {}, 'Which head links'),
      this.#selects[0],
      element('span', { 'aria-hidden': 'true' }, '→'),
      this.#selects[1],
      this.#ranking,
    );
  }

  show(reading, state) {
    const { from, to } = state;
    const same =
      reading === this.#reading &&
      this.#state &&
      from === this.#state.from &&
      to === this.#state.to &&
      state.words === this.#state.words;
    this.#reading = reading;
    this.#state = state;
    const units = unitsOf(reading, { words: state.words, bare: false });
    this.#offer(units);
    if (same) return;
    const [first, second] = [from, to].map((token) =>
      token === null ? undefined : units[placeOf(units, token)],
    );
    if (!first || !second) {
      this.#latest.stop();
      this.#ranking.replaceChildren(
        element('li', { class: 'says' }, 'Choose two tokens to see which heads join them.'),
      );
      return;
    }
    this.#latest.stop();
    this.#latest.run('rank', async (signal) => {
      const rows = await reading.lookOf(first.tokens, signal);
      if (signal.aborted) return;
      const weights = Float32Array.from({ length: reading.layers * reading.heads }, (_, i) =>
        second.tokens.reduce((sum, token) => sum + rows[i * reading.size + token], 0),
      );
      this.#rank(weights, first, second);
    });
  }

  #offer(units) {
    const options = units.map((unit) => ({ value: String(unit.tokens[0]), label: unit.name }));
    this.#selects.forEach((select, i) => {
      const token = [this.#state.from, this.#state.to][i];
      const place = token === null ? -1 : placeOf(units, token);
      setOptions(select, [{ value: '', label: '…' }, ...options], place < 0 ? '' : options[place].value);
    });
  }

  #rank(weights, first, second) {
    const { heads } = this.#reading;
    this.#ranking.replaceChildren(
      ...largest(weights, BEST).map((place) => {
        const [layer, head] = [Math.floor(place / heads), place % heads];
        const button = element(
          'button',
          {
            type: 'button',
            class: 'chip',
            data: { layer, head },
            title: `Show layer ${layer} head ${head}`,
            on: {
              click: () => this.page.go({ view: 'head', layer, head, pins: [first.tokens[0]], part: 'all' }),
            },
          },
          element('b', {}, `${layer}·${head}`),
          ` ${weights[place].toFixed(3)}`,
        );
        button.style.setProperty('--share', weights[place]);
        button.setAttribute(
          'aria-label',
          `Layer ${layer} head ${head}: ${first.name} to ${second.name} ${weights[place].toFixed(3)}`,
        );
        return element('li', {}, button);
      }),
    );
  }
}
