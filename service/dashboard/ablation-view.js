/** Heads switched off: what it does to the embedding and to the other heads. */

import { contrast } from './contrast.js';
import { element } from './dom.js';
import { Latest } from './latest.js';
import { namedMap } from './maps.js';
import { open, shifts } from './reading.js';
import { headPad } from './roving.js';
import { Threefold } from './threefold.js';

export class AblationView {
  #reading = null;
  #state = null;
  #pads = null;
  #changes = null;
  #alone = null;
  #shown = null;
  #maps;
  #contrast;
  #survey;

  constructor(page) {
    this.page = page;
    this.#maps = new Latest(page.report);
    this.#contrast = new Latest(page.report);
    this.#survey = new Latest(page.report);
    this.threefold = new Threefold();
    this.shift = element('output', { class: 'figure' });
    this.padPlaces = [element('div'), element('div')];
    this.measure = element(
      'button',
      { type: 'button', class: 'quiet', on: { click: () => this.#measure() } },
      'Measure each head alone',
    );
    this.all = element(
      'button',
      { type: 'button', class: 'quiet', on: { click: () => page.go({ off: [] }) } },
      'Switch all on',
    );
    this.title = element('h3');
    this.legend = element('p', { class: 'says' });
    this.element = element(
      'div',
      {},
      element('h2', {}, 'Ablation'),
      element(
        'div',
        { class: 'ablation' },
        element(
          'section',
          { 'aria-label': 'Switch heads off' },
          element('h3', {}, 'Switch heads off'),
          this.padPlaces[0],
          this.legend,
          element('div', { class: 'controls' }, this.measure, this.all),
        ),
        element(
          'section',
          { 'aria-label': 'The embedding’s shift' },
          element('h3', {}, 'The embedding’s shift'),
          this.shift,
          element(
            'p',
            { class: 'says' },
            '1 − cosine between the text’s embedding with all heads and without these.',
          ),
        ),
        element(
          'section',
          { 'aria-label': 'How far the maps moved' },
          element('h3', {}, 'How far the maps moved'),
          this.padPlaces[1],
          element(
            'p',
            { class: 'says' },
            'The share of a row’s weight that went elsewhere, on average. Pick a head to see it.',
          ),
        ),
      ),
      this.title,
      this.threefold.element,
    );
  }

  show(reading, state) {
    const layer = Math.min(state.layer, reading.layers - 1);
    const head = Math.min(state.head, reading.heads - 1);
    if (reading !== this.#reading) this.#begin(reading);
    this.#state = { ...state, layer, head };
    this.shift.textContent = reading.shift === null ? '0' : reading.shift.toPrecision(3);
    this.all.disabled = state.off.length === 0;
    this.title.textContent = `Layer ${layer} · Head ${head}`;
    this.#showPads();
    this.#compare(reading, state);
    this.#showMaps(reading);
  }

  leave() {
    for (const latest of [this.#maps, this.#contrast, this.#survey]) latest.stop();
  }

  redraw() {
    this.threefold.redraw();
  }

  #begin(reading) {
    const sameText = this.#reading && this.#reading.texts.join('\0') === reading.texts.join('\0');
    if (!sameText) {
      this.#survey.stop();
      this.#alone = null;
    }
    if (!this.#pads || reading.layers !== this.#reading.layers || reading.heads !== this.#reading.heads) {
      const shape = { layers: reading.layers, heads: reading.heads };
      this.#pads = [
        headPad({ ...shape, label: 'Switch heads off', onPick: (layer, head) => this.#toggle(layer, head) }),
        headPad({
          ...shape,
          label: 'Show a head',
          moves: true,
          onPick: (layer, head) => this.page.go({ layer, head }, { replace: true }),
        }),
      ];
      this.padPlaces.forEach((place, i) => place.replaceChildren(this.#pads[i].element));
    }
    this.#reading = reading;
    this.#changes = null;
    this.#shown = null;
    this.#maps.stop();
    this.#contrast.stop();
  }

  #toggle(layer, head) {
    const name = `${layer}.${head}`;
    const { off } = this.page.state;
    this.page.go({
      off: off.includes(name) ? off.filter((other) => other !== name) : [...off, name],
      layer,
      head,
    });
  }

  #showPads() {
    const { off, layer, head } = this.#state;
    const { heads } = this.#reading;
    const most = this.#alone ? Math.max(...this.#alone, 1e-12) : 1;
    this.legend.textContent = this.#alone
      ? `Shade: the shift with that head alone switched off, up to ${most.toPrecision(3)}.`
      : 'Click a head to switch it off, again to switch it on.';
    this.#pads[0].show((l, h) => {
      const isOff = off.includes(`${l}.${h}`);
      const alone = this.#alone?.[l * heads + h] ?? 0;
      return {
        value: alone / most,
        pressed: isOff,
        says: `${isOff ? 'off' : 'on'}${this.#alone ? `, shift alone ${alone.toPrecision(3)}` : ''}`,
      };
    });
    const furthest = this.#changes ? Math.max(...this.#changes, 1e-12) : 1;
    this.#pads[1].show((l, h) => {
      const change = this.#changes?.[l * heads + h] ?? 0;
      return {
        value: change / furthest,
        pressed: l === layer && h === head,
        says: `moved ${change.toFixed(3)}`,
      };
    });
  }

  #whole(signal) {
    return open({ texts: this.#reading.texts, cut: this.#state.cut, off: [] }, signal);
  }

  #compare(reading, { off }) {
    if (off.length === 0 || this.#changes) return;
    this.#contrast.run(off.join(), async (signal) => {
      const changes = await contrast(await this.#whole(signal), reading, signal);
      if (signal.aborted) return;
      this.#changes = changes;
      this.#showPads();
    });
  }

  #showMaps(reading) {
    const { layer, head } = this.#state;
    const key = `${layer}.${head}`;
    if (this.#shown?.key === key) {
      this.#draw();
      return;
    }
    this.#maps.run(key, async (signal) => {
      const whole = await this.#whole(signal);
      const [before, after] = await Promise.all([
        whole.map(layer, head, signal),
        reading.map(layer, head, signal),
      ]);
      if (signal.aborted) return;
      this.#shown = { key, before, after };
      this.#draw();
      this.page.say(`Switched off: ${this.#state.off.length}. Layer ${layer} head ${head} shown.`);
    });
  }

  #draw() {
    const named = (weights) => namedMap(weights, this.#reading, this.#state);
    this.threefold.show(
      named(this.#shown.before),
      named(this.#shown.after),
      ['Before', 'After'],
      this.#state,
    );
  }

  #measure() {
    const { cut } = this.#state;
    const reading = this.#reading;
    this.#survey.run('shifts', async (signal) => {
      const alone = new Float32Array(reading.layers * reading.heads);
      this.#alone = alone;
      for await (const { layer, head, shift } of shifts(reading, cut, signal)) {
        if (signal.aborted) return;
        alone[layer * reading.heads + head] = shift;
        this.#showPads();
      }
      this.page.say('Each head measured alone.');
    });
  }

  exported() {
    const { layer, head, off } = this.#state;
    return {
      name: `ablation layer ${layer} head ${head}`,
      scene: this.#shown && this.threefold.scene(),
      json: {
        layer,
        head,
        off,
        pooled_shift: this.#reading.shift ?? 0,
        ...(this.#changes ? { moved: [...this.#changes] } : {}),
        ...(this.#alone ? { shift_alone: [...this.#alone] } : {}),
        ...(this.#shown ? { maps: this.threefold.json() } : {}),
      },
    };
  }
}
