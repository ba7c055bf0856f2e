/** The page: one store, drawn whole whenever anything of it is another. */

import { ablationView } from './ablation-view.js';
import { comparedView } from './compared-view.js';
import { comparisonView } from './comparison-view.js';
import { headView } from './head-view.js';
import { headsView } from './heads-view.js';
import { render } from './html.js';
import { Live } from './live.js';
import { modelsView } from './models-view.js';
import { page } from './page.js';
import { rolloutView } from './rollout-view.js';
import { Store } from './store.js';
import { textsView } from './texts-view.js';
import { targetView } from './target-view.js';
import { whyView } from './why-view.js';

let asked = false;

const views = {
  heads: headsView,
  head: headView,
  compared: comparedView,
  rollout: rolloutView,
  ablation: ablationView,
  comparison: comparisonView,
  target: targetView,
  why: whyView,
  texts: textsView,
  models: modelsView,
};
const store = new Store(views, draw);
const live = new Live(draw);

/** Draws once for all that changes together. */
function draw() {
  if (asked) return;
  asked = true;
  queueMicrotask(() => {
    asked = false;
    const { view, layer, head } = store.state;
    document.title =
      view === 'heads'
        ? 'Headscope'
        : `${store.view.title}${view === 'head' ? ` ${layer}·${head}` : ''} · Headscope`;
    render(page(store, live), document.body);
    const focused = store.focus && document.querySelector(store.focus);
    store.focus = null;
    if (focused instanceof HTMLElement) focused.focus();
  });
}

document.addEventListener('keydown', ({ key, target }) => {
  if (key !== 'Escape' || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement)
    return;
  if (store.state.pins.length + store.state.held.length) store.go({ pins: [], held: [] }, { replace: true });
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
store.begin();
