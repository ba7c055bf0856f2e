/** Attention rollout: what reaches each token through all layers. */

import { element } from './dom.js';
import { Latest } from './latest.js';
import { namedMap, plainMap } from './maps.js';
import { MapView } from './mapview.js';
import { partSwitch, scaleSwitch, weakestLink } from './switches.js';

export class RolloutView {
  #reading = null;
  #weights = null;
  #state = null;
  #map = null;
  #latest;

  constructor(page) {
    this.page = page;
    this.#latest = new Latest(page.report);
    this.mapView = new MapView(page);
    this.scale = scaleSwitch(page);
    this.weakest = weakestLink(page);
    this.parts = partSwitch(page);
    this.element = element(
      'div',
      {},
      element('h2', {}, 'Rollout'),
      element(
        'p',
        { class: 'says' },
        'How much of each token reaches each other one through all layers: a layer’s mean over its heads plus the identity, rows rescaled, multiplied from the first layer to the last (Abnar & Zuidema 2020).',
      ),
      element('div', { class: 'controls' }, this.parts.element, this.weakest.element, this.scale.element),
      this.mapView.element,
    );
  }

  show(reading, state) {
    if (reading !== this.#reading) {
      this.#latest.stop();
      this.#weights = null;
    }
    this.#reading = reading;
    this.#state = state;
    this.scale.show(state);
    this.weakest.show(state);
    this.parts.show(state, reading);
    if (this.#weights) this.#draw();
    else
      this.#latest.run('rollout', async (signal) => {
        const weights = await reading.rollout(signal);
        if (signal.aborted) return;
        this.#weights = weights;
        this.#draw();
        this.page.say('Rollout shown.');
      });
  }

  leave() {
    this.#latest.stop();
  }

  redraw() {
    if (this.#map) this.mapView.redraw();
  }

  #draw() {
    this.#map = namedMap(this.#weights, this.#reading, this.#state);
    this.mapView.show(this.#map, this.#state, 'Rollout');
  }

  exported() {
    return {
      name: 'rollout',
      scene: this.#map && this.mapView.scene(),
      json: this.#map ? plainMap(this.#map) : {},
    };
  }
}
