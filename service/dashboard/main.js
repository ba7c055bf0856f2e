/** Start of the page: makes the store, and draws the page after every change. */

import { render } from './core/html.js';
import { LivePanel } from './ui/live-panel.js';
import { page } from './ui/page.js';
import { Store } from './ui/store.js';
import { slotOf } from './ui/view-slot.js';
import { ablationView } from './views/ablation.js';
import { headsView } from './views/all-heads.js';
import { comparisonView, modelsView } from './views/comparison.js';
import { targetView } from './views/cross-attention.js';
import { textsView } from './views/many-texts.js';
import { headView } from './views/one-head.js';
import { comparedView } from './views/query-and-key.js';
import { rolloutView } from './views/rollout.js';
import { searchView } from './views/search.js';
import { whyView } from './views/why-alike.js';

let asked = false;

const views = {
  heads: slotOf(headsView),
  head: slotOf(headView),
  compared: slotOf(comparedView),
  rollout: slotOf(rolloutView),
  ablation: slotOf(ablationView),
  comparison: slotOf(comparisonView),
  target: slotOf(targetView),
  why: slotOf(whyView),
  texts: slotOf(textsView),
  models: slotOf(modelsView),
  search: searchView,
};
const store = new Store(views, draw, async (one) => (await import('./pictures/page.js')).picturePage(one));
const live = new LivePanel(draw);

/** Draw once for all changes of the same moment. */
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
    const before = document.activeElement;
    render(page(store, live), document.body);
    const isLost = before && (!before.isConnected || before.closest('[hidden]'));
    const focused = document.querySelector(store.focus ?? (isLost ? '#panel' : '#none'));
    store.focus = null;
    if (focused instanceof HTMLElement) focused.focus();
  });
}

document.addEventListener('keydown', ({ key, target }) => {
  if (key !== 'Escape' || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement)
    return;
  if (document.querySelector(':popover-open')) return;
  if (store.state.pins.length + store.state.held.length) store.go({ pins: [], held: [] }, { replace: true });
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
store.begin();
