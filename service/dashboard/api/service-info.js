/**
 * Facts about the service and the page's model.
 *
 * @typedef {Object} ServiceInfo
 * @property {string} model_id
 * @property {string[]} models of the service, this one among them
 * @property {Object<string, unknown>} model_type `embedding`, `classifier` or `reranker`
 * @property {number} layers
 * @property {number} heads
 * @property {string} engine
 * @property {string[]} prompts their names
 * @property {string} provider
 * @property {string} precision
 * @property {number|null} decoder_layers
 * @property {number|null} decoder_heads
 * @property {Object<string, unknown>|null} [images] how pictures are prepared, of a model that reads them
 * @property {string[]|null} [towers] of a model that reads texts too
 * @property {{layers: number, heads: number}|null} [vision] tower for pictures of such a model
 */

/** Return whether the model reads pictures. @param {ServiceInfo|undefined} info */
export const readsPictures = (info) => Boolean(info?.images);

/** Return whether the model reads both texts and pictures. @param {ServiceInfo|undefined} info */
export const readsBoth = (info) => Boolean(info?.towers);

/**
 * Return whether the model scores pairs (`reranker`), or labels texts (`classifier`).
 *
 * @param {ServiceInfo|undefined} info
 * @returns {'reranker'|'classifier'|null}
 */
export const taskOf = (info) => {
  const kind = info?.model_type ?? {};
  return 'reranker' in kind ? 'reranker' : 'classifier' in kind ? 'classifier' : null;
};

/**
 * The layers and heads of the model's decoder.
 *
 * @param {ServiceInfo|undefined} info
 * @returns {{layers: number, heads: number}|null|undefined} null of a model without a decoder; undefined until
 *   `info` is known
 */
export function decoderOf(info) {
  if (!info) return undefined;
  return info.decoder_layers ? { layers: info.decoder_layers, heads: Number(info.decoder_heads) } : null;
}

/**
 * The names of the service's other models.
 *
 * @param {ServiceInfo|undefined} info
 * @returns {string[]}
 */
export const othersOf = (info) => (info ? info.models.filter((name) => name !== info.model_id) : []);
