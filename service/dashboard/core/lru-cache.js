/**
 * Map that keeps the most recently used entries.
 *
 * @template K, V
 * @extends {Map<K, V>}
 */
export class LruCache extends Map {
  /** @param {K} key @param {V} value @param {number} most @returns {V} */
  keep(key, value, most) {
    this.delete(key);
    this.set(key, value);
    for (const oldest of this.keys()) {
      if (this.size <= most) break;
      this.delete(oldest);
    }
    return value;
  }
}
