/** Examples of a query with results. */

/** One result a line. */
export const FIRST_QUERY = 'How long do refunds take?';
export const FIRST_RESULTS = [
  'We refund orders within five days.',
  'Refunds are a topic of many letters to the editor.',
  'Money is returned to your card in about a week.',
  'How long does it take to boil an egg?',
  'We ship to Norway and Sweden.',
].join('\n');

/** CSV with titles, the ranks of a search engine, and marks of relevance. */
export const MARKED_RESULTS = `rank,title,text,relevance
1,Refunds,We refund orders within five days.,2
2,Letters,"Refunds are a topic of many letters to the editor.",0
3,Eggs,How long does it take to boil an egg?,0
4,Payments,Money is returned to your card in about a week.,2
5,Returns,"Send the parcel back, and we start the refund.",1
6,Shipping,We ship to Norway and Sweden.,0
`;
