/** View of the similarity of two texts, with the share of each token and pair of tokens. */

import { inOtherText } from '../api/errors.js';
import { decomposition, explanation, headLosses, layerCosines, occlusion } from '../api/explanation.js';
import { html, nothing } from '../core/html.js';
import { markedSpans, markedText as markedWords } from '../core/marked-words.js';
import { fixed } from '../core/numbers.js';
import { unitsOf } from '../core/words.js';
import { theme } from '../draw/colours.js';
import { markedScene, pairsScene } from '../draw/marked-text.js';
import { stacked } from '../draw/scene.js';
import { shareMap } from '../draw/share-map.js';
import { figuresScene } from '../elements/three-maps.js';
import {
  areDone,
  doneOf,
  isLong,
  methodOf,
  methodSwitch,
  namesOf,
  reliability,
  sharesOf,
  similarityOf,
} from '../ui/explanation-methods.js';
import {
  byHead,
  byLayer,
  matchTable,
  paced,
  strongestMatches,
  TOP_WORDS,
  waitOf,
} from '../ui/explanation-tables.js';
import { leadingWords } from '../ui/leading-words.js';
import { markedText } from '../ui/marked-text.js';
import { otherTextProblem } from '../ui/problems.js';
import { textField } from '../ui/text-field.js';
import { textNotes } from '../ui/text-notes.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../ui/view-slot.js').Parts} Parts
 * @typedef {import('../core/state.js').State['why']} MethodName
 * @typedef {{other: string}} Asked
 * @typedef {import('../api/explanation.js').Explanation} Reply
 * @typedef {import('../api/explanation.js').Shares} Shares
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 */

/** @type {import('../ui/explanation-methods.js').Methods} */
const METHODS = {
  occlusion: {
    name: 'Remove each word',
    says: 'What the similarity loses when a token or word is neither attended to nor pooled (occlusion). It asks the model again, without the token. Two tokens that say the same hide each other. Below 0, in brown, the texts are more alike without it.',
  },
  pairs: {
    name: 'By final vectors',
    says: 'The share of each pair of last vectors in the similarity. It says where the similarity lies in the vectors that are compared, not where it came from: the vector at a word has already mixed in its neighbours.',
  },
  decomposition: {
    name: 'By input words',
    says: 'The share of each pair of input tokens, followed through all layers with attention as it is (decomposition). It does not say what would have been had a token not been there.',
  },
};
const TEXTS = ['Text', 'Other text'];

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const whyView = {
  title: 'Why alike?',
  asks: ({ b, c }) => ({ other: b ?? c }),

  async answer({ reading, asked, signal }) {
    const texts = [reading.texts[0], asked.other];
    return explanation({ reading, texts, cut: asked.cut, signal }).catch(inOtherText);
  },

  /** @returns {Record<string, (signal: AbortSignal) => Promise<unknown>>} */
  parts({ asked: { cut }, reply, state }) {
    if (reply.matches) return {};
    /** @param {string} part @param {(signal: AbortSignal) => Promise<unknown>} work */
    const timed = (part, work) => (/** @type {AbortSignal} */ signal) => paced(reply, part, work(signal));
    const [layers, shares, heads] = [
      timed('layers', (signal) => layerCosines(reply, cut, signal)),
      timed('decomposition', (signal) => decomposition(reply, cut, signal)),
      timed('heads', (signal) => headLosses(reply, cut, signal)),
    ];
    if (isLong(reply)) {
      const without = (/** @type {string} */ part, /** @type {{spans: string, top?: number}} */ units) =>
        timed(part, (signal) => occlusion(reply, cut, signal, units));
      return {
        sentences: without('sentences', { spans: 'sentences' }),
        strongest: without('strongest', { spans: 'words', top: TOP_WORDS }),
        layers,
        heads,
        decomposition: shares,
      };
    }
    return {
      layers,
      ...(state.words
        ? { words: timed('words', (signal) => occlusion(reply, cut, signal, { spans: 'words' })) }
        : {}),
      occlusion: timed('occlusion', (signal) => occlusion(reply, cut, signal)),
      decomposition: shares,
      heads,
    };
  },

  draw(store, shown, parts) {
    const { b, c } = store.state;
    const box = {
      id: 'text-c',
      label: 'Other text',
      value: c,
      patch: (/** @type {string} */ text) => ({ c: text }),
    };
    return html`<h2 id="view-title" tabindex="-1">Why alike?</h2>
      ${b === null ? textField(store, box) : nothing}
      ${otherTextProblem(store)}
      ${shown ? explained(store, shown.reply, parts) : nothing}`;
  },

  says: ({ reply }, parts) =>
    `Similarity ${fixed(reply.similarity, 3)}${isComplete(reply, parts) ? ' explained.' : '; its shares are being computed.'}`,

  file({ state }, { asked, reply }, parts) {
    const { similarity, texts, matches } = reply;
    const known = sharesOf(reply, parts);
    const columns = texts[1].tokens.length;
    const plain = namesOf(METHODS).flatMap((method) => {
      const found = known[method];
      if (!found) return [];
      const { pairs, worth, error } = found;
      return [
        [method, { worth: worth.map((one) => [...one]), pairs: pairs && rowsOf(pairs, columns), error }],
      ];
    });
    const { name, scene } = pictured(state, reply, parts);
    return {
      name: `why alike ${name}`,
      texts: [texts[0].texts[0], asked.other],
      scene,
      json: {
        other: asked.other,
        tokens: texts[0].tokens,
        otherTokens: texts[1].tokens,
        similarity,
        shown: name,
        layers: doneOf(parts, 'layers'),
        heads: doneOf(parts, 'heads'),
        matches,
        sentences: plainLosses(doneOf(parts, 'sentences')),
        strongest: plainLosses(doneOf(parts, 'strongest')),
        ...Object.fromEntries(plain),
      },
    };
  },
};

/** @param {Reply} reply @param {Parts} parts */
const isComplete = (reply, parts) =>
  Boolean(reply.matches) ||
  areDone(parts, [
    ...(isLong(reply) ? ['sentences', 'strongest'] : ['occlusion']),
    'layers',
    'decomposition',
    'heads',
  ]);

/** @param {Store} store @param {Reply} reply @param {Parts} parts */
function explained(store, reply, parts) {
  const [, other] = reply.texts;
  const unknown = reply.unknown > Number(reply.reading.unknown);
  return html`${textNotes({ truncated: other.truncated, size: other.tokens.length, unknown }, 'The other text')}
    ${similarityOf(store, reply)}
    ${reply.matches ? matched(reply, reply.matches) : byMethod(store, reply, parts)}`;
}

/** @param {Store} store @param {Reply} reply @param {Parts} parts */
function byMethod(store, reply, parts) {
  const { state } = store;
  const method = methodOf(state, reply, parts);
  const section = (/** @type {string} */ name, /** @type {unknown} */ content) =>
    html`<section aria-label=${name}><h3>${name}</h3>${content}</section>`;
  const [layers, heads] = [doneOf(parts, 'layers'), doneOf(parts, 'heads')];
  const figures = figuresOf(state, reply, sharesOf(reply, parts)[method], method);
  const waits = partOf(state, reply, method);
  return html`${answer(state, reply, parts, method)}
    ${waits === 'sentences' ? covered(doneOf(parts, 'sentences'), doneOf(parts, 'strongest')) : nothing}
    ${shownShares(state, reply, parts, method) ? nothing : html`<p>${waitOf(reply, parts, waits)}</p>`}
    ${[0, 1].map((side) => marked(state, reply, parts, method, side))}
    ${methodSwitch(store, METHODS, reply, parts)}
    ${waits === 'sentences' ? strongestWords(reply, parts) : nothing}
    <div class="why-body">${figures ? html`<three-maps class="why-map" .data=${figures}></three-maps>` : nothing}
      <div class="comparison">
        ${section('How reliable is this?', reliability(METHODS, reply, parts))}
        ${section('Layer by layer', layers ? byLayer(layers) : waitOf(reply, parts, 'layers'))}
        ${section('Head by head', heads ? byHead(store, heads) : waitOf(reply, parts, 'heads'))}
      </div></div>`;
}

/** @param {import('../core/state.js').State} state @param {Reply} reply @param {Shares|null} shares @param {MethodName} method */
const figuresOf = ({ words, bare }, { texts }, shares, method) =>
  shares?.pairs ? shareMap(texts, shares.pairs, METHODS[method].name, words, bare, theme()) : null;

/**
 * Return the part whose shares are shown: losses of words are not sums over their tokens.
 *
 * @param {import('../core/state.js').State} state
 * @param {Reply} reply
 * @param {MethodName} method
 */
const partOf = ({ words }, reply, method) =>
  method === 'occlusion' && isLong(reply) ? 'sentences' : words && method === 'occlusion' ? 'words' : method;

/** @param {import('../core/state.js').State} state @param {Reply} reply @param {Parts} parts @param {MethodName} method @returns {Shares|null} */
const shownShares = (state, reply, parts, method) =>
  method === 'pairs' ? reply.pairs : doneOf(parts, partOf(state, reply, method));

/**
 * Return the tokens, words or sentences of one text with their values, null as long as they have not come.
 *
 * @param {import('../core/state.js').State} state
 * @param {Reply} reply
 * @param {Parts} parts
 * @param {MethodName} method
 * @param {number} side
 */
function wordsOf(state, reply, parts, method, side) {
  const shares = shownShares(state, reply, parts, method);
  const { tokens, offsets, texts } = reply.texts[side];
  const values = shares?.worth[side];
  return shares?.spans && values
    ? markedSpans(texts[0], shares.spans[side], values)
    : markedWords(texts[0], { tokens, offsets, unknown: [], shares: values }, state.words);
}

/** Words of one text, shaded where they stand, on a scale of their own. @param {import('../core/state.js').State} state @param {Reply} reply @param {Parts} parts @param {MethodName} method @param {number} side */
function marked(state, reply, parts, method, side) {
  const words = wordsOf(state, reply, parts, method, side);
  const specials = words.specials.filter(({ value }) => value !== null && Math.abs(value) >= 5e-4);
  const rest = specials.map(({ label, value }) => `${label} ${fixed(value ?? 0, 3)}`).join(', ');
  return markedText({ label: `${TEXTS[side]}, token by token`, marked: words, rest: state.bare ? '' : rest });
}

/** The words that matter most, in a sentence. @param {import('../core/state.js').State} state @param {Reply} reply @param {Parts} parts @param {MethodName} method */
function answer(state, reply, parts, method) {
  const isOfSentences = method === 'occlusion' && isLong(reply);
  const strongest = isOfSentences ? doneOf(parts, 'strongest') : null;
  const sides = [0, 1].map((side) =>
    isOfSentences ? removedWords(reply, strongest, side) : wordsOf(state, reply, parts, method, side).words,
  );
  return leadingWords(
    sides.flat(),
    ['makes', 'make', 'pushes', 'push'].map((verb, i) => `${verb} them ${i < 2 ? 'alike' : 'apart'}`),
  );
}

/** Words of long texts that were left out, the largest loss first. @param {Reply} reply @param {Parts} parts */
function strongestWords(reply, parts) {
  const losses = doneOf(parts, 'strongest');
  if (!losses) return html`<p>${waitOf(reply, parts, 'strongest')}</p>`;
  return TEXTS.map((name, side) => {
    const words = removedWords(reply, losses, side);
    const largest = Math.abs(words[0]?.value ?? 0);
    const all = { words, after: '', specials: [], rest: 0, largest };
    return html`<h3>${name}: words</h3>${markedText({ label: `${name}, strongest words`, marked: all })}`;
  });
}

/** Matches of a model whose similarity is a sum over matching tokens. @param {Reply} reply @param {import('../api/explanation.js').Match[]} matches */
function matched(reply, matches) {
  const label = labelling(reply);
  return matchTable('links', 'Tokens that match, and what each match is worth', matches, {
    text: ({ query }) => label(0, query),
    'other text': ({ document }) => label(1, document),
  });
}

/** Return the label of a token of a text. @param {Reply} reply */
function labelling({ texts }) {
  const units = texts.map((text) => unitsOf(text, { words: false, bare: false }));
  return (/** @type {number} */ side, /** @type {number} */ token) => units[side][token].label;
}

/** Return the scene of the method that is shown, with its name. @param {import('../core/state.js').State} state @param {Reply} reply @param {Parts} parts */
function pictured(state, reply, parts) {
  const similarity = `Similarity ${fixed(reply.similarity, 4)}`;
  if (reply.matches) {
    const label = labelling(reply);
    const { strongest, rest } = strongestMatches(reply.matches);
    const pairs = strongest.map(({ query, document, score }) => ({
      from: label(0, query),
      to: label(1, document),
      value: score,
    }));
    if (rest) pairs.push({ from: rest.label, to: '', value: rest.score });
    return {
      name: 'matches',
      scene: stacked([{ ...pairsScene(pairs), title: `${similarity}: tokens that match, and the scores` }]),
    };
  }
  const method = methodOf(state, reply, parts);
  const { name } = METHODS[method];
  const texts = TEXTS.map((title, side) => {
    const { words, specials } = wordsOf(state, reply, parts, method, side);
    const scene = markedScene([...words, ...(state.bare ? [] : specials)]);
    return { ...scene, title: side ? title : `${similarity} · ${name}` };
  });
  const figures = figuresOf(state, reply, shownShares(state, reply, parts, method), method);
  return {
    name: name.toLowerCase(),
    scene: stacked([...texts, ...(figures ? [figuresScene(figures)] : [])]),
  };
}

/** @param {Float32Array} values @param {number} width */
const rowsOf = (values, width) =>
  Array.from({ length: values.length / width }, (_, row) => [
    ...values.subarray(row * width, (row + 1) * width),
  ]);

/** Return losses for JSON, with null where none was computed. @param {Shares|null} shares */
const plainLosses = (shares) =>
  shares?.spans?.map((spans, side) =>
    spans.map(({ start, end }, i) => {
      const loss = shares.worth[side][i];
      return { start, end, loss: Number.isNaN(loss) ? null : loss };
    }),
  ) ?? null;

/**
 * Say how much of long texts was left out.
 *
 * @param {Shares|null} sentences
 * @param {Shares|null} words
 */
function covered(sentences, words) {
  if (!sentences) return nothing;
  const count = (/** @type {Shares} */ { worth }) => {
    const all = worth.flatMap((side) => [...side]);
    return `${all.filter((loss) => !Number.isNaN(loss)).length} of ${all.length}`;
  };
  return html`<p>Left out one at a time: ${count(sentences)} sentences${words ? `, and ${count(words)} words, those that promise most` : ''}.</p>`;
}

/**
 * Return the words of a text that were left out, the largest loss first.
 *
 * @param {Reply} reply
 * @param {Shares|null} losses
 * @param {number} side
 */
function removedWords({ texts }, losses, side) {
  if (!losses?.spans) return [];
  return markedSpans(texts[side].texts[0], losses.spans[side], losses.worth[side])
    .words.filter(({ value }) => value !== null)
    .sort((one, other) => Math.abs(other.value ?? 0) - Math.abs(one.value ?? 0))
    .map((word) => ({ ...word, before: ' ' }));
}
