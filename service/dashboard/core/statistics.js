/** Statistics of a head: their names, and the behaviour that they show. */

/** @type {Object<string, {name: string, says: string}>} in the API's order */
export const STATISTICS = {
  entropy: { name: 'Entropy', says: 'nats; 0 when each token looks at one token only' },
  distance: { name: 'Distance', says: 'tokens between the one that looks and what it sees, on average' },
  confidence: { name: 'Confidence', says: 'largest weight of a token, on average' },
  cls: { name: 'First-token share', says: 'weight on the first token' },
  sep: { name: 'Separator share', says: 'weight on separators' },
  self: { name: 'Self share', says: 'weight of a token on itself' },
  previous: { name: 'Previous share', says: 'weight on the token before' },
  next: { name: 'Next share', says: 'weight on the token after' },
};

/**
 * Return the names of statistics and behaviours for a text: shares of special tokens are named after its own.
 *
 * @param {Pick<import('./words.js').Tokenized, 'tokens'|'offsets'>} text
 * @returns {{statistics: typeof STATISTICS, labels: typeof LABELS}}
 */
export function namesFor({ tokens, offsets }) {
  const special = (/** @type {number} */ i) => offsets[i]?.[0] === offsets[i]?.[1];
  const last = tokens.length - 1;
  const [first, separator] = [special(0) ? tokens[0] : null, special(last) && last > 0 ? tokens[last] : null];
  const renamed = (/** @type {{name: string, says: string}} */ entry, /** @type {string|null} */ name) =>
    name === null ? entry : { ...entry, name };
  return {
    statistics: {
      ...STATISTICS,
      cls: renamed(STATISTICS.cls, first && `${first} share`),
      sep: renamed(STATISTICS.sep, separator && `${separator} share`),
    },
    labels: { ...LABELS, cls: renamed(LABELS.cls, first && `${first} sink`) },
  };
}

const DOMINATES = 0.5;
const ABOVE_EVEN = 2;
const BROAD = 0.8;

/** @type {Object<string, {name: string, says: string}>} */
export const LABELS = {
  previous: { name: 'previous token', says: 'At least half of its attention is on the token before.' },
  next: { name: 'next token', says: 'At least half of its attention is on the token after.' },
  self: { name: 'itself', says: 'Tokens give at least half of their attention to themselves.' },
  cls: {
    name: 'first-token sink',
    says: 'At least half of its attention rests on the first token, where tokens look that find nothing else.',
  },
  sep: {
    name: 'separator sink',
    says: 'At least half of its attention rests on separators, where tokens look that find nothing else.',
  },
  broad: {
    name: 'broad',
    says: 'Its entropy is at least 0.8 of the largest there is: it looks nearly everywhere alike.',
  },
};

/**
 * Return the behaviour that dominates a head: the largest share, if it is at least one half and twice the
 * share of even attention; else `broad`, if the entropy is at least 0.8 of ln S.
 *
 * @param {Object<string, number>} statistics of one head
 * @param {number} size S
 * @param {number} separators how many of the S tokens are separators
 * @returns {string|null} a key of LABELS
 */
export function labelOf(statistics, size, separators) {
  const shares = ['previous', 'next', 'self', 'cls', 'sep'];
  const top = shares.reduce((best, name) => (statistics[name] > statistics[best] ? name : best));
  const even = (top === 'sep' ? Math.max(1, separators) : 1) / size;
  if (statistics[top] >= DOMINATES && statistics[top] >= ABOVE_EVEN * even) return top;
  return size > 1 && statistics.entropy >= BROAD * Math.log(size) ? 'broad' : null;
}
