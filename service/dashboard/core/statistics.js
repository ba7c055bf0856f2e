/** Statistics of a head: their names, and the behaviour that they show. */

/** @type {Object<string, {name: string, says: string}>} in the API's order */
export const STATISTICS = {
  entropy: { name: 'Entropy', says: 'nats; 0 when each token looks at one token only' },
  distance: { name: 'Distance', says: 'tokens between the one that looks and what it sees, on average' },
  confidence: { name: 'Confidence', says: 'largest weight of a token, on average' },
  cls: { name: '[CLS] share', says: 'weight on the first token' },
  sep: { name: '[SEP] share', says: 'weight on separators' },
  self: { name: 'Self share', says: 'weight of a token on itself' },
  previous: { name: 'Previous share', says: 'weight on the token before' },
  next: { name: 'Next share', says: 'weight on the token after' },
};

const DOMINATES = 0.5;
const ABOVE_EVEN = 2;
const BROAD = 0.8;

/** @type {Object<string, {name: string, says: string}>} */
export const LABELS = {
  previous: { name: 'previous token', says: 'At least half of its attention is on the token before.' },
  next: { name: 'next token', says: 'At least half of its attention is on the token after.' },
  self: { name: 'itself', says: 'Tokens give at least half of their attention to themselves.' },
  cls: {
    name: '[CLS] sink',
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
