// Where pages are: what links lead to.

import { path } from "./api.js";

export const toQueue = ({ vhost, name }) => path`#/queues/${vhost}/${name}`;
// In an address, too, the exchange without a name has this one.
export const toExchange = ({ vhost, name }) => path`#/exchanges/${vhost}/${name || "amq.default"}`;
export const toLoop = (name) => path`#/governor/${name}`;
export const toAdmission = (name) => path`#/admission/${name}`;
export const toReport = (name) => path`#/experiments?report=${name}`;
